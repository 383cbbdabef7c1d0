"""Compiled graphs that an earlier process has kept: each thing that a key holds is changed, one at a time, and what is
computed is compared with eager. A hit stands for another process where all but the disk is forgotten."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.base import logs
from dynamo.base.config import config as dynamo_config
from dynamo.store import versions
from dynamo.store.artifacts import load_cache_artifacts, save_cache_artifacts
from dynamo.store.processor import describe
from inductor import metrics
from inductor.cache import graph_cache, graph_key, graph_rows
from inductor.config import config
from tests.common import new_cache
from tests.processes import run_python

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache of this test, shared with no other."""
    with new_cache(tmp_path / "cache"), config.patch(graph_cache=True):
        yield tmp_path / "cache"


def reused(run: Callable[[], Any]) -> tuple[Any, int]:
    """The result, and how many graphs came from the disk."""
    dynamo.reset()
    before = metrics.snapshot()["graphs_reused"]
    return run(), metrics.snapshot()["graphs_reused"] - before


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def check(f: Callable[..., Any], *args: Any, hits: int) -> None:
    """Compiled anew, f gives what eager gives, with so many graphs from the disk."""
    found, count = reused(lambda: dynamo.compile(f)(*args))
    assert same(found, f(*args))
    assert count == hits


def scaled(number: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y) * number

    return f


def test_the_same_function_hits() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    check(scaled(2.0), x + 1, y, hits=1)
    check(scaled(2.0), x - 1, y, hits=1)


def test_what_weights_give_is_made_again_by_another_process() -> None:
    norm, up, x = nn.LayerNorm(6), nn.Linear(6, 5), torch.randn(4, 5)
    rows = nn.Parameter(torch.randn(7, 6))

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.norm, self.up = rows, norm, up

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.up(self.norm(self.rows)).t()

    model = Projected().eval()
    with torch.no_grad():
        for hits in (0, 1, 1):
            rows.normal_()
            check(model, x, hits=hits)


@pytest.mark.parametrize("other", [3.0, 2, True, -2.0, 2.0000000000000004, float("nan"), float("inf")])
def test_another_constant_misses(other: Any) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    check(scaled(other), x, y, hits=0)


def test_negative_zero_is_another_constant() -> None:
    x = torch.randn(4)
    check(lambda x: torch.copysign(x, torch.full_like(x, 0.0)), x, hits=0)
    check(lambda x: torch.copysign(x, torch.full_like(x, -0.0)), x, hits=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.half(),
        lambda x: x.t().contiguous().t(),
        lambda x: torch.randn(8, 6)[::2],
        lambda x: torch.randn(4, 12)[:, 3:9],
        lambda x: x[:, :1],
        lambda x: x[:1],
        lambda x: x[:0],
        lambda x: torch.randn(4, 1).expand(4, 6),
        lambda x: nn.Parameter(x),
        lambda x: x.clone().requires_grad_(),
    ],
)
def test_another_kind_of_input_misses(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y[: len(x)], hits=0)
    other = change(x)
    check(scaled(2.0), other, y[: len(other)].to(other.dtype), hits=0)


def test_inputs_that_share_memory_miss() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    memory = torch.zeros(8)
    assert same(reused(lambda: dynamo.compile(f)(torch.zeros(4), torch.zeros(4)))[0], torch.ones(4))
    found, count = reused(lambda: dynamo.compile(f)(memory[:4], memory[2:6]))
    assert count == 0 and same(found, torch.tensor([1.0, 1.0, 2.0, 2.0])[[2, 3, 0, 1]].clone())


@contextlib.contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@contextlib.contextmanager
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [autocast, threads, default_dtype, deterministic, torch.inference_mode])
def test_another_mode_misses(mode: Callable[[], Any]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y + torch.ones(6, 6)

    x, y = torch.randn(6, 6), torch.randn(6, 6)
    with torch.no_grad():
        check(f, x, y, hits=0)
        with mode():
            found, count = reused(lambda: dynamo.compile(f)(x, y))
            assert count == 0
            assert found.dtype == f(x, y).dtype
            torch.testing.assert_close(found, f(x, y), rtol=2e-2, atol=2e-2)
        check(f, x, y, hits=1)


def test_gradients_wanted_or_not() -> None:
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    with torch.no_grad():
        check(scaled(2.0), x, y, hits=0)
    check(scaled(2.0), x, y, hits=0)


def test_an_option_misses() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    for option in ({"freezing": False}, {"freezing": 1}, {"library_kernels": "default"}):
        call = dynamo.compile(scaled(2.0), options=option)
        found, count = reused(lambda call=call: call(x, y))  # type: ignore[misc]
        assert count == 0 and same(found, scaled(2.0)(x, y))


@pytest.mark.parametrize("part", ["torch", "dynamo-jit", "processor", "python"])
def test_another_version_misses_and_is_named(
    part: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    stubs = {
        "torch": lambda: monkeypatch.setattr(torch, "__version__", "2.99"),
        "dynamo-jit": lambda: monkeypatch.setattr(versions, "own_source", lambda: "another"),
        "processor": lambda: monkeypatch.setattr(graph_key, "processor", lambda: describe("mkl")),
        "python": lambda: monkeypatch.setattr(versions.platform, "python_version", lambda: "3.99"),
    }
    stubs[part]()
    monkeypatch.setattr(logs.log("cache"), "enabled", True)
    check(scaled(2.0), x, y, hits=0)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "] graph " in line]
    assert f"the nearest graph differs in: {part}" in line


def test_another_line_of_the_source_misses(tmp_path: Path) -> None:
    x = torch.randn(5)
    for body, hits in (("x.sin() + 1", 0), ("x.sin() - 1", 0), ("x.sin() + 1", 1)):
        scope: dict[str, Any] = {}
        exec(f"def f(x):\n    return {body}\n", scope)
        check(scope["f"], x, hits=hits)


# -- what a record rebuilds ------------------------------------------------------------------------


def outputs_of_all_kinds(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    view = (x + y).t()
    return x, view, view[0], x[1:], torch.arange(3), (x * 2).sum()


def test_mutations_and_views() -> None:
    def run(call: Callable[..., Any]) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(0)
        x, y = torch.randn(4, 6), torch.randn(4, 6)
        return call(x, y), x

    expected, written = run(outputs_of_all_kinds)
    for hits in (0, 1):
        (found, x), count = reused(lambda: run(dynamo.compile(outputs_of_all_kinds)))
        assert count == hits and same(found, expected) and same(x, written)
        assert found[0] is x and found[3]._base is x
        assert found[1].untyped_storage()._cdata == found[2].untyped_storage()._cdata


def test_other_arguments_than_at_the_hit_run_as_captured() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    for _ in range(2):
        dynamo.reset()
        call = dynamo.compile(f)
        assert same(call(torch.zeros(4), torch.zeros(4)), torch.ones(4))
        memory = torch.zeros(8)
        assert same(call(memory[:4], memory[2:6]), torch.tensor([2.0, 2.0, 1.0, 1.0]))


def gradients(call: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    leaves = [arg.clone().requires_grad_() for arg in args]
    results = call(*leaves)
    torch.autograd.backward([result.sum() for result in results])
    return [*[result.detach() for result in results], *[leaf.grad for leaf in leaves]]  # type: ignore[list-item]


def two(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = torch.tanh(x @ y)
    return h * x.sum(), (h.exp() * y).sin()


def test_backward() -> None:
    x, y = torch.randn(5, 5), torch.randn(5, 5)
    for hits in (0, 2):
        found, count = reused(lambda: gradients(dynamo.compile(two), x, y))
        assert count == hits and same(found, gradients(two, x, y))


def test_backward_of_one_output_after_a_hit() -> None:
    """The record holds no such backward: it is compiled from the rows of its graph."""
    x, y = torch.randn(5, 5), torch.randn(5, 5)
    reused(lambda: gradients(dynamo.compile(two), x, y))
    for at, hits in ((0, 1), (0, 2), (1, 1)):
        def one(*args: torch.Tensor, at: int = at) -> Any:
            return [dynamo.compile(two)(*args)[at]]

        found, count = reused(lambda one=one: gradients(one, x, y))  # type: ignore[misc]
        assert count == hits and same(found, gradients(lambda *args, at=at: [two(*args)[at]], x, y))


def test_a_record_names_no_module_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle takes what torch names for a part of the first module that has imported torch."""
    program = types.ModuleType("program")
    program.torch = torch  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "modules", {"program": program, **sys.modules})
    values = torch.contiguous_format, torch.float32, torch.strided
    graph_cache._Writer(out := io.BytesIO(), {"traces": []}, None, None).dump(values)  # type: ignore[arg-type]
    assert graph_cache._Reader(out.getvalue(), {}, None).load() == values


def test_second_order_and_retained_graphs_after_a_hit() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).exp()

    def run(call: Callable[..., Any]) -> list[torch.Tensor]:
        x = torch.linspace(0, 1, 7, requires_grad=True)
        [first] = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.sum(), x)
        out = call(x).sum()
        out.backward(retain_graph=True)
        out.backward()
        return [first.detach(), second, x.grad]  # type: ignore[list-item]

    for _ in range(2):
        found, _ = reused(lambda: run(dynamo.compile(f)))
        assert same(found, run(f))


def test_weights_of_inference_are_prepared_and_seen_to_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).eval()
    x = torch.randn(16, 64)
    for hits in (0, 1):
        def run() -> list[torch.Tensor]:
            found = []
            with torch.no_grad():
                call = dynamo.compile(model)
                for _ in range(12):  # after eight changes the graph is compiled without
                    found.append(call(x) - model(x))
                    model[0].weight.mul_(1.01)
            return found

        found, count = reused(run)
        assert count >= hits
        assert max(float(difference.abs().max()) for difference in found) < 1e-4


def test_dropout_draws_what_a_cold_compile_draws() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 2

    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(reused(lambda: dynamo.compile(f)(torch.ones(40)))[0])
    assert same(*found)


# -- what is not cached ------------------------------------------------------------------------------


def test_a_module_named_as_operators_are_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aten", torch.nn.functional)
    for function in (torch.ops.aten.relu.default, torch.relu):
        assert graph_rows.function_of(graph_key.text_of_function(function)) is function


# -- the folder ------------------------------------------------------------------------------------


def entries(folder: Path, kind: str, suffix: str) -> list[Path]:
    return sorted((folder / kind).glob(f"*/*{suffix}"))


@pytest.mark.parametrize("damage", ["half", "one byte", "empty", "text"])
def test_a_damaged_record_is_compiled_again(folder: Path, damage: str) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    [file] = entries(folder, "graph", ".graph")
    content = file.read_bytes()
    changed = {
        "half": content[: len(content) // 2],
        "one byte": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
        "empty": b"",
        "text": b"nothing of the kind" * 9,
    }
    file.write_bytes(changed[damage])
    check(scaled(2.0), x, y, hits=0)
    check(scaled(2.0), x, y, hits=1)


def test_another_library_in_its_place_is_not_run(folder: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    [ours] = entries(folder, "library", ".so")
    check(scaled(3.0), x, y, hits=0)
    [other] = [file for file in entries(folder, "library", ".so") if file != ours]
    [record] = [file for file in entries(folder, "graph", ".graph") if ours.name.encode() in file.read_bytes()]
    other_bytes = other.read_bytes()
    ours.unlink()
    ours.write_bytes(other_bytes)
    assert record.is_file()
    found, count = reused(lambda: dynamo.compile(scaled(2.0))(x, y))
    assert count == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator gives files away")
def test_a_record_of_somebody_else_is_not_read(folder: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    [file] = entries(folder, "graph", ".graph")
    os.chown(file, 54321, -1)
    check(scaled(2.0), x, y, hits=0)


def test_a_folder_that_is_copied_hits(folder: Path, tmp_path: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    shutil.copytree(folder, tmp_path / "copy")
    with dynamo_config.patch(cache_dir=str(tmp_path / "copy")):
        check(scaled(2.0), x, y, hits=1)


def test_artifacts_carry_graphs(tmp_path: Path) -> None:
    x, y = torch.randn(5, 5), torch.randn(5, 5)
    reused(lambda: gradients(dynamo.compile(two), x, y))
    saved = save_cache_artifacts()
    assert saved is not None
    data, info = saved
    assert info.files["graph"] == 2 and info.files["backward"] == 2  # a record and its key each
    with dynamo_config.patch(cache_dir=str(tmp_path / "other")):
        load_cache_artifacts(data)
        found, count = reused(lambda: gradients(dynamo.compile(two), x, y))
        assert count == 2 and same(found, gradients(two, x, y))


def test_a_disk_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dynamo.store.content import Store

    real = Store.write

    def write(store: Store, key: Any, suffix: str, content: bytes) -> Path:
        if suffix == ".graph":
            raise OSError(28, "No space left on device")
        return real(store, key, suffix, content)

    monkeypatch.setattr(Store, "write", write)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    check(scaled(2.0), x, y, hits=0)
    assert not entries(folder, "graph", ".graph")


PROGRAM = """
import sys, torch, dynamo
from inductor import metrics
torch.set_num_threads(1)
def f(x, y):
    h = torch.tanh(x @ y)
    return h * x.sum(), (h.exp() * y).sin()
torch.manual_seed(0)
x, y = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5)
results = []
for call in (f, dynamo.compile(f)):
    x.grad = None
    sum(part.sum() for part in call(x, y)).backward()
    results.append(x.grad)
torch.testing.assert_close(*results)
print(metrics.snapshot()["graphs_reused"])
"""


def start(folder: Path, **variables: str) -> subprocess.Popen[str]:
    env = {**os.environ, "DYNAMO_CACHE_DIR": str(folder), "DYNAMO_GRAPH_CACHE": "1", **variables}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> int:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return int(out)


def test_another_process_hits(folder: Path) -> None:
    for reused in (0, 2):
        done = run_python("-c", PROGRAM, DYNAMO_CACHE_DIR=str(folder), DYNAMO_GRAPH_CACHE="1")
        assert done.stdout == f"{reused}\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 8])
def test_processes_fill_one_folder_at_once(folder: Path, count: int) -> None:
    for process in [start(folder) for _ in range(count)]:
        finish(process)
    assert finish(start(folder)) == 2


def test_info_prune_and_clear(folder: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    before = dynamo.cache.info()
    assert Path(before.folder) == folder and before.entries["graph"] == 1 and before.entries["library"] == 1
    assert before.bytes == sum(file.stat().st_size for file in folder.glob("*/*/*"))
    for number, file in enumerate(sorted(folder.glob("*/*/*"))):
        os.utime(file, (number, number) if file.suffix == ".so" else None)
    [library] = entries(folder, "library", ".so")
    for file in library.parent.glob("*"):
        os.utime(file, (1, 1))
    gone = dynamo.cache.prune(before.bytes - 1)
    after = dynamo.cache.info()
    assert not library.exists() and "library" not in after.entries and after.entries["graph"] == 1
    assert after.bytes == before.bytes - gone
    check(scaled(2.0), x, y, hits=0)  # its library is not there
    check(scaled(2.0), x, y, hits=1)
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("not an entry")
    dynamo.cache.clear()
    assert dynamo.cache_info().entries == {} and (folder / "mine" / "notes.txt").exists()
    check(scaled(2.0), x, y, hits=0)


def test_a_folder_that_grows_too_large_loses_what_is_old(folder: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    check(scaled(2.0), x, y, hits=0)
    (folder / "looked_at").unlink()
    with dynamo_config.patch(cache_megabytes=0):
        check(scaled(3.0), x, y, hits=0)
    assert dynamo.cache_info().entries == {}


def test_a_decomposition_of_the_program_has_no_key(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(x, y)

    x, y = torch.randn(4), torch.randn(4)
    check(f, x, y, hits=0)
    check(f, x, y, hits=1)
    operator = torch.ops.aten.mse_loss.default
    monkeypatch.setitem(graph_key.decomposition_table, operator, lambda *args: torch.ops.aten.sub(*args[:2]).square().mean())
    dynamo.set_logs("cache")
    try:
        check(f, x, y, hits=0)
    finally:
        dynamo.set_logs("-cache")
    assert "has registered a decomposition of aten.mse_loss" in capfd.readouterr().err


def test_a_fake_of_the_program_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = graph_key.singleton.find("aten::relu")
    try:
        entry.fake_impl.kernels.append(torch._library.utils.Kernel(lambda x: x, "/home/me/model.py:3"))
        with pytest.raises(graph_key.Uncacheable, match="a fake of aten::relu"):
            graph_key._check_registrations()
    finally:
        del graph_key.singleton._data["aten::relu"]
    graph_key._check_registrations()


@pytest.mark.parametrize("part", ["parts_of_graph", "read_record", "write_record"])
def test_a_defect_of_the_cache_is_told_once_and_counted(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("a defect")

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    for suppress in (True, False):  # they have keys of their own
        with dynamo_config.patch(suppress_errors=suppress):
            check(scaled(2.0), x, y, hits=0)
    monkeypatch.setattr(graph_cache, part, fails)
    numbers = (2.0, 3.0) if part != "write_record" else (4.0, 5.0)
    with dynamo_config.patch(suppress_errors=True), pytest.warns(UserWarning, match="graphs failed") as told:
        dynamo.reset()
        for number in numbers:
            f = scaled(number)
            assert same(dynamo.compile(f)(x, y), f(x, y))
    assert len(told) == 1
    assert sum(dynamo.counters["internal_errors"].values()) == (1 if part == "read_record" else 2)
    with dynamo_config.patch(suppress_errors=False), pytest.raises(Exception, match="a defect"):
        dynamo.compile(scaled(numbers[0]))(x, y)
