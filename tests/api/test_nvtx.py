"""NVTX ranges of compiled programs: the calls that torch makes go to a stand-in for CUDA's library."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.profiler import emit_nvtx
from torch.profiler import record_function

import dynamo
from dynamo.store.content import Store
from dynamo.store.toolchain import find_toolchain
from inductor.runtime.triton_launch import named

Ranges = Callable[[Callable[[], Any]], list[tuple[str, ...]]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("nvtx")
    toolchain = find_toolchain(Store(folder / "store"))
    assert not isinstance(toolchain, str), toolchain
    root = Path(torch.__file__).parent
    command = [toolchain.compiler, "-std=c++17", "-shared", "-fPIC", str(Path(__file__).with_name("nvtx.cpp")),
               "-I", str(root / "include"), "-L", str(root / "lib"), "-ltorch_cpu", "-lc10", "-o", str(folder / "nvtx.so")]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(folder / "nvtx.so"))
    found.taken.restype = found.install.restype = ctypes.c_void_p
    found.put_back.argtypes = [ctypes.c_void_p]
    return found


@pytest.fixture
def ranges(library: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranges]:
    """What a call shows: the names of each range and of those around it, the outermost first."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: None)
    before = library.install()

    def of(call: Callable[[], Any]) -> list[tuple[str, ...]]:
        with emit_nvtx():
            call()
        found: list[tuple[str, ...]] = []
        open_now: list[str] = []
        for line in ctypes.string_at(library.taken()).decode().splitlines():
            if line:
                open_now.append(line.partition(", ")[0] if ", seq" in line or ", op_id" in line else line)
                found.append(tuple(open_now))
            else:
                open_now.pop()
        assert not open_now
        return found

    yield of
    library.put_back(before)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("mine"):
            y = self.linear(x).cumsum(0)
        dynamo.graph_break()
        return y.softmax(0)


def test_regions_graphs_and_kernels_have_the_names_of_the_program(ranges: Ranges) -> None:
    model = dynamo.compile(Net())
    x = torch.randn(4, 8)
    model(x).sum().backward()
    found = ranges(lambda: model(x).sum().backward())
    paths = [" > ".join(path) for path in found]
    assert ("Net.forward (compiled)",) in found

    def inside(*names: str) -> bool:
        """Whether there is a range within those, in that order."""
        return any([*filter(lambda name: name in names, path)] == list(names) for path in found)

    assert inside("Net.forward (compiled)", "Net.forward 0/0", "mine"), paths
    kernels = [path for path in found if path[-1].startswith("Net.forward 0/0: ")]
    assert kernels and all("mine" in path for path in kernels), paths
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "dynamo.graph_break()" in text)
    behind = [path[-1] for path in found if path[-1].startswith(f"forward from line {line} ")]
    assert any("softmax" in name for name in behind), paths
    assert any(path[-1].startswith("Net.forward 0/0 backward: ") for path in found), paths


def test_nothing_is_shown_outside_of_a_session(ranges: Ranges, library: Any) -> None:
    model = dynamo.compile(lambda x: x.sin() * 3)
    model(torch.ones(4))
    ctypes.string_at(library.taken())
    model(torch.ones(4))
    assert ctypes.string_at(library.taken()) == b""


def test_graphs_of_a_gpu_have_a_range(ranges: Ranges) -> None:
    """Their callables are written in Python; both ways to call one."""

    def graph(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (args[0].neg(),)

    graph.of_list = lambda given: graph(given.pop())  # type: ignore[attr-defined]
    call = named(graph, "Net.forward 2/0")
    x = torch.ones(3)
    for way in (lambda: call(x), lambda: call.of_list([x])):
        assert torch.equal(way()[0], -x)
        assert ("Net.forward 2/0", "aten::neg") in ranges(way)
    assert not hasattr(named(lambda x: x, "other"), "of_list")


def test_a_range_ends_where_a_graph_raises(ranges: Ranges) -> None:
    def fail(*args: Any) -> Any:
        raise IndexError("seeded")

    def call() -> None:
        with pytest.raises(IndexError, match="seeded"):
            named(fail, "Net.forward 3/0")()
        torch.ones(3).sin()

    found = ranges(call)
    assert ("Net.forward 3/0",) in found and ("aten::sin",) in found
