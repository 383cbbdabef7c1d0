"""The report: what a reader finds of a program with breaks and a recompile, and that nothing of the program is HTML in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.base import recordings
from dynamo.base.config import config
from dynamo.base.graph_copies import copy_graph
from dynamo.graphs import Peaks
from dynamo.reporting import report
from dynamo.reporting.eager import Eager, eager_times
from dynamo.reporting.facts import Report, gather
from dynamo.reporting.kernels import Life, Part, Step
from dynamo.reporting.page import page
from dynamo.reporting.pictures import lanes_html, memory_svg
from dynamo.reporting.sources import Line, sources
from dynamo.reporting.timeline import Bar, compiles, step_bars
from inductor.runtime import _launch
from tests.processes import run_python

VOID = ("meta", "br", "input", "link", "img", "hr", "wbr")


def work(x: torch.Tensor, limit: float = 3.0) -> torch.Tensor:
    y = torch.nn.functional.gelu(x @ x.T)  # <script>alert("in the source")</script>
    if y.sum() < limit:
        y = -y
    print("norm", float(y.norm()))
    return y.softmax(-1)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


class Elements(HTMLParser):
    """Open elements must be closed in order; text by the classes and ids around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.rows: dict[str, tuple[str, str]] = {}  # id of a line -> class, text
        self.notes: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [str(given[name]) for name in ("href", "src") if name in given]
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, given in self.open:
            if (given.get("class") or "").startswith("row") and given.get("id"):
                name, kind = str(given["id"]), str(given["class"])
                self.rows[name] = (kind, self.rows.get(name, ("", ""))[1] + data)
            if (given.get("class") or "").startswith("note") and data.strip():
                self.notes.append(data.strip())


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[None]:
    dynamo.reset()
    recordings.clear()
    with config.patch(report=str(tmp_path / "out")):
        yield
    report.stop()
    recordings.clear()
    for launcher in _launch.launchers():
        launcher.clear_times()


@pytest.fixture
def recorded(recording: None) -> Report:
    compiled = dynamo.compile(work)
    for rows in (4, 5, 6):
        compiled(torch.randn(rows, 8))
    found = gather()
    found.__dict__["keepalive"] = compiled
    return found


def test_facts(recorded: Report) -> None:
    branch, item = recorded.breaks
    assert branch.place == (__file__, line_of("if y.sum()")) and branch.number == "DB0002"
    assert "torch.where" in branch.remedy and item.place[1] == line_of('print("norm"')
    assert {row.reason for row in recorded.recompiles} >= {"shape of x was [4, 8], now it is [5, 8]"}
    assert recorded.recompiles[0].place == (__file__, line_of("y = torch.nn"))
    first = recorded.graphs[0]
    assert first.number == 0 and first.name == "work" and first.ends_in_break
    assert (__file__, line_of("y = torch.nn"), 3) in first.lines
    assert first.guard_count == len(first.guards) > 3
    assert first.captured is not None
    steps = [step for part in first.parts for step in part.steps]
    assert {step.kind for step in steps} == {"kernel", "library"} or all(s.kernel for s in steps)
    assert all(step.calls == 1 and step.seconds > 0 for step in steps)
    gelu = next(step for step in steps if "gelu" in step.title)
    assert gelu.code.startswith("static ") and f"int {gelu.kernel}(" in gelu.code and (__file__, line_of("y = torch.nn")) in gelu.lines
    assert "gelu" not in first.parts[0].loops and "for i0" in first.parts[0].loops
    assert not recorded.not_compiled and recorded.seconds["convert"] > 0


def test_lines(recorded: Report) -> None:
    (file,) = [file for file in sources(recorded) if file.name == __file__]
    lines: dict[int, Line] = {line.number: line for line in file.lines()}
    start = line_of("def work")
    assert [lines[n].state for n in range(start, start + 6)] == [
        "traced", "graph", "break", "traced", "break", "graph"]
    assert min(lines) == start and max(lines) == start + 5
    assert lines[start + 1].graphs.keys() == {0, 3} and lines[start + 5].graphs.keys() == {2, 5}
    assert any("gelu" in title for title in lines[start + 1].kernels)


def test_the_page_names_each_line_and_remedy(recorded: Report) -> None:
    text = page(recorded)
    found = Elements(text)
    branch = next(row for name, row in found.rows.items() if name.endswith(f"-{line_of('if y.sum()')}"))
    assert "break" in branch[0] and "if y.sum() < limit:" in branch[1]
    notes = " ".join(found.notes)
    assert "a branch depends on the values in a tensor" in notes and "Use torch.where" in notes
    assert "Keep it a tensor, without .item()" in notes and "shape of x was [4, 8], now it is [5, 8]" in notes
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#graph")} <= found.ids
    for word in ("guards: what this code assumes", "C++ of the kernels", "loops before fusion", "The last step", "of peak"):
        assert word in text
    assert len(text) < 1_200_000


def test_each_remedy_stands_once_with_its_lines(recorded: Report) -> None:
    text = page(recorded)
    (todo,) = re.findall(r'<section id="todo">(.*?)</section>', text, re.S)
    assert todo.count("Use torch.where") == 1 and f":{line_of('if y.sum()')}</a>" in todo
    targets = re.findall(r'<a href="#(\w+)">', re.findall(r"<nav>(.*?)</nav>", text, re.S)[0])
    assert len(targets) > 6 and set(targets) <= Elements(text).ids
    assert f"<b>{len(recorded.breaks)}</b> graph break" in text


def test_no_kernel_is_faster_than_the_machine(recorded: Report) -> None:
    slow, quick = (Step(name, "", "kernel", (), 1000, 0, 1, 1e-6, fastest, "")
                   for name, fastest in (("slow", 2e-6), ("quick", 1e-9)))
    part = Part("p", (0, "9/9"), "", "cpu", (slow, quick))
    fields = {name: getattr(recorded, name) for name in Report.__dataclass_fields__}
    text = page(Report(**{**fields, "others": (part,), "peaks": {"cpu": Peaks(1e9, 1e9)}}))
    assert "50%</td>" in text and "in cache</td>" in text
    assert all(int(share) <= 100 for share in re.findall(r">(\d+)%</td>", text))
    assert "is unknown: it was busy" in page(Report(**{**fields, "others": (part,), "peaks": {}}))


def test_nothing_of_the_program_is_html(recorded: Report) -> None:
    bad = "<script>alert(1)</script>"
    recorded.machine["program"] = bad
    part = Part(bad, (0, "9/9"), "", bad, (Step(bad, "k", "kernel", (), 8, 8, 1, 1e-3, 1e-3, bad),),
                lives=(Life(0, 8, 0, 1, bad),), spans=((0, 0.0, 1.0),), arena=8, loops=bad, fused=bad,
                refusals=((bad, bad, bad),))
    text = page(Report(**{**{name: getattr(recorded, name) for name in Report.__dataclass_fields__},
                          "others": (part,)}))
    assert bad not in text and "&lt;script&gt;" in text
    assert 'alert("in the source")' not in text and "in the source" in text
    assert text.count("<script>") == 1  # our own
    Elements(text)


def test_user_text_in_pictures() -> None:
    assert "<b>" not in lanes_html([Bar("<b>bar</b>" * 3, 0.0, 1.0, 0, "g")]) and lanes_html([]) == ""
    part = Part("p", (0, ""), "", "", (), arena=64, lives=(Life(0, 64, 0, 3, "<b>"),))
    assert "&lt;b&gt;" in memory_svg(part) and memory_svg(Part("p", (0, ""), "", "", ())) == ""


def test_each_compile_has_its_seconds(recorded: Report) -> None:
    """Blocks lie in one another: each second is counted once."""
    made = compiles(recorded)
    titles = [each.title for each in made]
    assert titles[0] == "work [0/0]" and re.fullmatch(r"work, from line \d+ on \[1/0]", titles[1]) and len(set(titles)) == len(titles)
    outer = sum(end - begin for stage, begin, end, _, _ in recorded.spans if stage == "convert")
    assert outer - 1e-6 <= sum(each.total for each in made) < sum(end - begin for _, begin, end, _, _ in recorded.spans)
    assert all(made[0].seconds[group] > 0 for group in ("evaluate Python", "make the graph functional", "fuse loops, print kernels"))
    text = page(recorded)
    assert all(each.title in text for each in made) and "evaluate Python" in text


def test_timelines(recorded: Report) -> None:
    steps = step_bars(recorded)
    assert steps[0].begin == 0 and {bar.depth for bar in steps} == {0, 1}
    trace = json.loads(report.chrome_trace(recorded))["traceEvents"]
    assert {"compile", "run"} == {row["pid"] for row in trace} and all(row["dur"] >= 0 for row in trace)


def test_guards_stand_below_their_reasons(recorded: Report) -> None:
    text = page(recorded)
    reasons = re.findall(r'<p class="why">(.*?)</p><ul class="guards">(.*?)</ul>', text, re.S)
    assert any(why == "the graph is made for this metadata" and "metadata(x)" in rows for why, rows in reasons)
    assert sum(rows.count("<li>") for _, rows in reasons) == sum(graph.guard_count for graph in recorded.graphs if graph.number is not None)


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    y += 1
    return torch.nn.functional.dropout(y, 0.5).sum()


def test_eager_is_timed_beside_ours(recording: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On made-up values: the program's tensors and random numbers stay as they are."""
    compiled, w = dynamo.compile(writes), torch.randn(8, 8, requires_grad=True)
    for _ in range(2):
        compiled(torch.randn(4, 8), w).backward()
    before, drawn, slope = w.clone(), torch.get_rng_state(), w.grad.clone()
    found = gather()
    (eager,) = eager_times(found).values()
    assert eager.forward > 0 and eager.backward > 0 and not eager.why_not
    assert torch.equal(w, before) and torch.equal(w.grad, slope) and torch.equal(torch.get_rng_state(), drawn)
    monkeypatch.setattr(report, "_is_busy", lambda: False)
    text = dynamo.report().read_text()
    assert text.count(" eager</span>") == 2 and "graph\n0</a> writes, backward" in text
    monkeypatch.setattr(report, "_is_busy", lambda: True)
    assert "Unknown: the machine was busy" in dynamo.report().read_text()


@torch.library.custom_op("report_test::sent", mutates_args=())
def sent(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("runs once more")


@sent.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_could_be_seen_is_not_run_for_a_report(recorded: Report, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither are graphs of sizes that vary, or whose kernels ran once."""
    reasons = {graph.name: eager_times(recorded)[graph.key].why_not for graph in recorded.graphs[:1]}
    assert reasons == {"work": "called once"}
    (first, *_) = recorded.graphs
    twice = replace(first.parts[0], steps=tuple(replace(step, calls=2) for step in first.parts[0].steps))
    graph = replace(first, parts=(twice,))

    def why(changed: torch.fx.Graph) -> str:
        return eager_times(replace(recorded, graphs=(replace(graph, captured=changed),)))[graph.key].why_not

    assert eager_times(replace(recorded, graphs=(graph,)))[graph.key].forward > 0
    for target, reason in ((torch.ops.report_test.sent.default, "an operator of others, sent.default"), (torch.linalg.inv, "RuntimeError on made-up values")):
        changed = copy_graph(graph.captured)
        output = changed.output_node()
        with changed.inserting_before(output):
            node = changed.call_function(target, (next(iter(changed.nodes)),))
        output.args = ((node,),)
        assert why(changed) == reason and not capfd.readouterr().err
    fields = Eager(why_not=why(recorded.graphs[3].captured))
    assert fields.why_not == "sizes vary" and "1 graph: sizes vary" in page(replace(recorded, eager={graph.key: fields}))


def test_gradients_have_lines_too(recording: None) -> None:
    compiled = dynamo.compile(lambda x, w: (x @ w).tanh().sum())
    compiled(torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)).backward()
    (graph,) = gather().graphs
    parts = {part.part: part for part in graph.parts}
    assert parts.keys() == {"", "backward"}
    here = {(__file__, line_of("compiled = dynamo.compile(lambda x, w"))}
    assert all(set(step.lines) == here for step in parts["backward"].steps)
    assert [step.operations for step in parts["backward"].steps if "mm" in step.title] == [2 * 8**3]


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    """Without DYNAMO_REPORT: lines, breaks, guards, kernels, C++; neither times nor pictures of graphs."""
    dynamo.reset()
    recordings.clear()
    compiled = dynamo.compile(work)
    compiled(torch.randn(4, 8))
    file = dynamo.report(tmp_path / "page.html")
    text = file.read_text()
    assert file == tmp_path / "page.html" and (tmp_path / "page_trace.json").exists()
    assert "No times were kept" in text and "DYNAMO_REPORT=folder is set from the start" in text
    assert "Use torch.where" in text and "static int kernel" in text


def skipped(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def outer(x: torch.Tensor) -> torch.Tensor:
    y = skipped(x) + 1
    return torch.linalg.lstsq(y, y).solution


def test_functions_that_run_as_they_are(recording: None) -> None:
    left = dynamo.compile(outer, backend="eager")
    mark = dynamo.skip(skipped)
    left(torch.eye(3))
    found = gather()
    text = page(found)
    assert [row.name for row in found.skipped] == ["skipped"] and mark is not None
    assert "the user skips it" in text


def test_the_end_of_a_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch, dynamo\n@dynamo.compile(backend='eager')\ndef f(x):\n    y = x + 1\n    print(y.sum().item())\n"
                      "    return y * 2\nf(torch.ones(3))\n")
    done = run_python(str(script), DYNAMO_REPORT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert f"dynamo: the report is {tmp_path / 'out' / 'report.html'}" in done.stderr
    text = (tmp_path / "out" / "report.html").read_text()
    assert re.search(r'class="row break" id="line-[\w-]+-script-py-5"', text) and "Keep it a tensor" in text
    assert json.loads((tmp_path / "out" / "report_trace.json").read_text())["traceEvents"]


def test_a_report_keeps_graphs_in_the_disk_cache(tmp_path: Path) -> None:
    """What it loads must not be what makes the backend keep nothing."""
    script = ("import torch, dynamo\nx = torch.ones(4)\ndynamo.compile(lambda x: x.sin() + 1)(x)\n"
              f"dynamo.report({str(tmp_path / 'page.html')!r})\nimport inductor.metrics as m\nfor _ in range(2):\n"
              "    dynamo.compile(lambda x: x.cos() * 3, isolate_recompiles=True)(x)\nprint(m.snapshot()['graphs_reused'])\n")
    (tmp_path / "script.py").write_text(script)
    done = run_python(str(tmp_path / "script.py"), DYNAMO_CACHE_DIR=str(tmp_path / "cache"), DYNAMO_GRAPH_CACHE="1")
    assert done.stdout.strip() == "1", done.stderr
