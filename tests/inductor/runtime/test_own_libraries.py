"""Builds ahead: one build for all who ask, errors where the library is asked for."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamo.aot.capture import capture_forward
from dynamo.base.config import config as base_config
from dynamo.store.content import Store, cache_store, watched_files
from dynamo.store.toolchain import Toolchain
from inductor.autotune import early_libraries
from inductor.config import config
from inductor.driver.cpu import need_toolchain
from inductor.driver.shipped_libraries import LIBRARIES, ship
from inductor.kernels.cpu.attention.source import attention_unit
from inductor.kernels.cpu.convolution import CONVOLUTION_UNITS
from inductor.kernels.cpu.gemm import GEMM_UNIT
from inductor.runtime import own_libraries
from inductor.runtime.build import BuildError

UNIT = 'extern "C" __attribute__((visibility("default"))) int seven() { return 7; }'


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return need_toolchain(cache_store())


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that build."""
    names: list[str] = []
    real = own_libraries.build_library

    def build(*args: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(own_libraries, "build_library", build)
    return names


def test_who_asks_waits_for_the_build(
    tmp_path: Path, toolchain: Toolchain, builds: list[str]
) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        own_libraries.begin((UNIT,), store, toolchain)
    path = own_libraries.own_library((UNIT,), store, toolchain)
    assert ctypes.CDLL(path).seven() == 7
    assert len(builds) == 1 and builds != [threading.current_thread().name]
    own_libraries.begin((UNIT,), store, toolchain)  # is there
    assert len(builds) == 1 and own_libraries.own_library((UNIT,), store, toolchain) == path


def test_settling_waits(tmp_path: Path, toolchain: Toolchain) -> None:
    store = Store(tmp_path)
    own_libraries.begin((UNIT,), store, toolchain)
    own_libraries.settle()
    [library] = tmp_path.glob("library/*/*.so")
    with watched_files() as files:  # what a shipped graph needs
        own_libraries.own_library((UNIT,), store, toolchain)
    assert files == {library}


def test_errors_are_told_to_who_asks(tmp_path: Path, toolchain: Toolchain) -> None:
    store = Store(tmp_path)
    own_libraries.begin(("nonsense;",), store, toolchain)
    own_libraries.settle()
    for _ in range(2):
        with pytest.raises(BuildError, match="nonsense"):
            own_libraries.own_library(("nonsense;",), store, toolchain)


class Everything(torch.nn.Module):
    def __init__(self, width: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, width, kernel)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: Any, rows: Any) -> Any:
        q = self.linear(rows)[None, None]
        return self.conv(x), torch.nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize(
    ("width", "size", "rows", "options", "expected"),
    [
        (256, 40, 256, {}, ["gemm", "attention", "convolution"]),
        (256, 40, 256, {"library_kernels": "default"}, ["attention"]),
        (256, 40, 256, {"leave_out": "attention"}, ["gemm", "convolution"]),
        (4, 6, 8, {}, []),
    ],
)
def test_libraries_that_a_graph_will_ask_for(
    width: int, size: int, rows: int, options: dict[str, Any], expected: list[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    begun: list[tuple[str, ...]] = []
    monkeypatch.setattr(early_libraries, "begin", lambda units, *_: begun.append(units))
    module = Everything(width).eval()
    graph = torch.fx.symbolic_trace(module)
    with torch.no_grad():
        captured = capture_forward(graph, [torch.randn(1, 3, size, size), torch.randn(rows, width)])
    captured.module.meta["frozen"] = frozenset((0,))
    names = {
        (GEMM_UNIT,): "gemm", (attention_unit(False),): "attention",
        CONVOLUTION_UNITS: "convolution",
    }  # fmt: skip
    with config.patch(**{"library_kernels": "measure", **options}), base_config.patch(cache_dir=str(tmp_path)):
        early_libraries.begin_libraries(captured.module)
    assert sorted(names[units] for units in begun) == sorted(expected)
    assert set(begun) <= set(LIBRARIES)  # they come with the package


def test_a_shipped_library_is_taken_and_a_damaged_one_built(
    tmp_path: Path, toolchain: Toolchain, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_libraries, "SHIPPED", tmp_path / "shipped")
    store = Store(tmp_path / "store")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "old.so").write_bytes(b"of another text")
    (made,) = ship(tmp_path / "shipped", [(UNIT,)])
    assert list((tmp_path / "shipped").iterdir()) == [made] and made.stat().st_mode & 0o5 == 0o5
    own_libraries.begin((UNIT,), store, toolchain)
    path = own_libraries.own_library((UNIT,), store, toolchain)
    assert path == str(made) and ctypes.CDLL(path).seven() == 7 and not builds

    other = replace(toolchain, isa="of another processor")
    assert own_libraries.shipped((UNIT,), own_libraries.with_fused_sums(other)) is None
    changed = UNIT.replace("7", "8")
    assert ctypes.CDLL(own_libraries.own_library((changed,), store, toolchain)).seven() == 8
    part = made.read_bytes()[:100]
    made.unlink()  # what is loaded of it stays as it is
    made.write_bytes(part)
    again = own_libraries.own_library((UNIT,), store, toolchain)
    assert again != str(made) and ctypes.CDLL(again).seven() == 7 and len(builds) == 2
