"""`dynamo.profile` and torch.profiler: what they see of compiled calls, and a user's own ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, record_function

import dynamo
from inductor import metrics
from inductor.config import config as backend
from inductor.runtime import _launch


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


def scores(x: torch.Tensor) -> torch.Tensor:
    with record_function("attention"):
        y = x @ x.T
        with record_function("weights"):
            y = y.softmax(-1)
    with record_function("last"):
        return (y @ x).cumsum(0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def events_of(call: Any) -> list[Any]:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return list(profiler.events())


def test_ranges_have_the_names_of_the_program() -> None:
    model = dynamo.compile(Net())
    x = torch.randn(4, 8)
    model(x)
    events = events_of(lambda: model(x).sum().backward())
    names = [event.name for event in events]
    assert "Net.forward (compiled)" in names and "Net.forward 0/0" in names
    assert any(name.startswith("Net.forward 0/0 backward: ") for name in names)
    graph = next(event for event in events if event.name == "Net.forward 0/0")
    around = []
    outer = graph
    while (outer := outer.cpu_parent) is not None:
        around.append(outer.name)
    assert around[-1] == "Net.forward (compiled)"
    assert all(child.name.startswith("Net.forward 0/0: ") for child in graph.cpu_children)
    assert graph.cpu_children


def test_the_part_behind_a_break_has_its_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        dynamo.graph_break()
        return y.cos() * 2

    compiled = dynamo.compile(f)
    compiled(torch.ones(4))
    names = [event.name for event in events_of(lambda: compiled(torch.ones(4)))]
    line = line_of("dynamo.graph_break()")
    assert any(name.startswith(f"f from line {line} ") for name in names), names


def test_a_users_ranges_stay() -> None:
    """Kernels lie in the ranges of the operations that they compute, nested as in the program."""
    compiled = dynamo.compile(scores)
    x = torch.randn(16, 16)
    torch.testing.assert_close(compiled(x), scores(x))
    events = events_of(lambda: compiled(x))
    by_name = {event.name: event for event in events}
    assert {"attention", "last"} <= by_name.keys()
    outer = by_name["attention"].cpu_parent
    assert outer.name == "scores 0/0" and by_name["last"].cpu_parent is outer
    inside = [child.name for child in by_name["attention"].cpu_children]
    assert any("mm" in name for name in inside)
    if "weights" in by_name:
        assert by_name["weights"].cpu_parent.name == "attention"
    order = [event.name for event in sorted(outer.cpu_children, key=lambda event: event.time_range.start)]
    assert order.index("attention") < order.index("last")


def test_ranges_end_where_a_kernel_raises() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with record_function("looked up"):
            y = x.sin()[index]
        return y + 1

    compiled = dynamo.compile(f)
    compiled(torch.ones(4), torch.tensor([1]))

    def fail() -> None:
        with record_function("around"), pytest.raises(IndexError):
            compiled(torch.ones(4), torch.tensor([9]))
        torch.ones(3).sin()

    events = events_of(fail)
    (sine,) = [event for event in events if event.name == "aten::sin" and event.cpu_parent is None]
    assert sine is not None and any(event.name == "looked up" for event in events)


def test_table() -> None:
    compiled = dynamo.compile(lambda x: (x.sin() @ x).cumsum(0))
    x = torch.randn(64, 64)
    compiled(x)
    with dynamo.profile() as found:
        for _ in range(3):
            compiled(x)
    assert found.rows and all(row.calls == 3 and row.seconds > 0 for row in found.rows)
    sine = next(row for row in found.rows if "sin" in row.kernel)
    assert sine.moved == 2 * 64 * 64 * 4 and sine.operations == 64 * 64
    assert sine.lines == ((__file__, line_of("compiled = dynamo.compile(lambda x: (x.sin()")),)
    assert sum(row.operations for row in found.rows) >= 2 * 64**3
    text = str(found)
    assert text.splitlines()[0].split()[:3] == ["kernel", "calls", "ms"] and "test_profile.py:" in text
    with dynamo.profile() as other:
        compiled(x)
    assert all(row.calls == 1 for row in other.rows) and found.rows[0].calls == 3


def test_times_are_kept_only_while_they_are_wanted() -> None:
    compiled = dynamo.compile(lambda x: x.exp() * 2)
    compiled(torch.ones(4))
    launcher = _launch.launchers()[-1]
    with dynamo.profile():
        compiled(torch.ones(4))
    compiled(torch.ones(4))
    steps, stamps = launcher.times()
    assert [calls for calls, _, _ in steps] == [1] and [step for step, _ in stamps] == [0, -1]
    launcher.clear_times()
    assert launcher.times() == ([(0, 0, 0)], [])


def test_lines_follow_the_program_out_of_the_cache(tmp_path: Path) -> None:
    """A graph that comes from the disk cache has the lines of the program that runs now."""
    found = []
    before = metrics.snapshot()["graphs_reused"]
    with dynamo.config.patch(cache_dir=str(tmp_path / "cache")), backend.patch(graph_cache=True):
        for above in (0, 7):
            name = tmp_path / f"program{above}.py"
            name.write_text("\n" * above + "def f(x):\n    return x.sin() + 1\n")
            scope: dict[str, Any] = {}
            exec(compile(name.read_text(), str(name), "exec"), scope)
            compiled = dynamo.compile(scope["f"])
            compiled(torch.ones(8))
            with dynamo.profile() as profiled:
                compiled(torch.ones(8))
            found.append(profiled.rows[0].lines)
    assert metrics.snapshot()["graphs_reused"] == before + 1
    assert found == [((str(tmp_path / "program0.py"), 2),), ((str(tmp_path / "program7.py"), 9),)]
