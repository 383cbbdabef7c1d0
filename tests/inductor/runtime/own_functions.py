"""What the tests of GEMMs and convolutions of our own share: ours are taken, schedules are noted."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynamo.store.content import cache_store
from inductor.autotune import gemm_choice, library_convolutions
from inductor.config import config
from inductor.driver import cpu
from inductor.driver.cpu import need_toolchain
from inductor.ir.convolutions import Geometry
from inductor.scheduler.schedule import Schedule


@contextmanager
def noted_schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """The schedules that C++ is generated for, of inference, where other libraries are measured."""
    seen: list[Schedule] = []
    generate = cpu.generate

    def watched(name: str, graph: Any, schedule: Schedule, *rest: Any) -> Any:
        seen.append(schedule)
        return generate(name, graph, schedule, *rest)

    monkeypatch.setattr(cpu, "generate", watched)
    with config.patch(library_kernels="measure"), torch.no_grad():
        yield seen


def gemms_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GEMMs that our own function can compute are computed by it."""

    def ours(self: Any, linear: Any) -> str:
        assert self.ours(torch.float32) is not None
        return "ours"

    monkeypatch.setattr(gemm_choice.Chooser, "fastest", ours)


def convolutions_are_ours(monkeypatch: pytest.MonkeyPatch, way: str = "ours") -> None:
    """All convolutions, by our own functions; way: of those that Winograd's could compute."""

    def fastest(self: Any, node: Any, geometry: Geometry) -> str:
        assert self.library is not None
        return way if geometry.suits_winograd() else "ours"

    monkeypatch.setattr(library_convolutions.Convolutions, "fastest", fastest)


def assert_near(module: nn.Module, compiled: Any, *inputs: torch.Tensor) -> None:
    """As near to what float64 gives as three times eager's distance, at each call."""
    expected, found = module(*inputs), [compiled(*inputs) for _ in range(2)]
    exact = module.double()(*(x.double() for x in inputs))
    module.float()
    allowed = 3 * (expected - exact).abs().max() + 1e-6 * exact.abs().max()
    for got in found:
        assert got.stride() == expected.stride()
        assert (got - exact).abs().max() <= allowed


def define_without_memory(name: str, folder: Path) -> None:
    """A C function that says that it found no memory, for all libraries that are loaded later."""
    source, library = folder / "without.cpp", folder / "without.so"
    source.write_text(f'extern "C" int {name}(...) {{ return 1; }}')
    compiler = need_toolchain(cache_store()).compiler
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
