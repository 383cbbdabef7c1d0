"""Kernels that Triton has compiled are loaded once, one at a time, without Triton's launchers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inductor.runtime import triton_binary


class OutOfResources(Exception):
    pass


class Utils:
    """In the place of Triton's: how many loads there were, and how many at the same time."""

    def __init__(self) -> None:
        self.loads, self.at_once, self.most_at_once = 0, 0, 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1000}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.005)
        self.loads += 1
        self.at_once -= 1
        return object(), 100 + len(kernel), 0, 0, 256


class Compiled:
    """As Triton gives it before somebody has run it."""

    function = None

    def __init__(self, kernel: bytes, shared: int = 0, warps: int = 4, **special: int) -> None:
        self.name, self.kernel = "kernel", kernel
        self.metadata = SimpleNamespace(shared=shared, num_warps=warps, num_ctas=1, **special)
        self.launchers = 0

    def _init_handles(self) -> None:
        self.launchers += 1


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> Iterator[Utils]:
    made = Utils()
    active = SimpleNamespace(utils=made, get_current_device=lambda: 0)
    runtime, errors = ModuleType("triton.runtime"), ModuleType("triton.runtime.errors")
    runtime.driver = SimpleNamespace(active=active)  # type: ignore[attr-defined]
    errors.OutOfResources = OutOfResources  # type: ignore[attr-defined]
    for module in (ModuleType("triton"), runtime, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield made


def test_threads_load_one_after_the_other(utils: Utils) -> None:
    kernels = [Compiled(b"x" * size) for size in range(4)]
    found: list[tuple[int, int]] = []

    def work() -> None:
        for size, kernel in enumerate(kernels):
            triton_binary.load(kernel)
            found.append((size, triton_binary.function_of(kernel)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert utils.loads == 4 and utils.most_at_once == 1
    assert sorted(set(found)) == [(size, 100 + size) for size in range(4)]
    assert not any(kernel.launchers for kernel in kernels)


@pytest.mark.parametrize("shared, warps", [(1001, 4), (0, 9)])
def test_what_is_too_large_is_an_error(utils: Utils, shared: int, warps: int) -> None:
    with pytest.raises(OutOfResources):
        triton_binary.function_of(Compiled(b"", shared, warps))


def test_what_needs_more_has_a_launcher_of_triton(utils: Utils) -> None:
    kernel = Compiled(b"", global_scratch_size=64)
    triton_binary.load(kernel)
    assert kernel.launchers == 1 and utils.loads == 0


def test_what_triton_has_loaded_is_taken(utils: Utils) -> None:
    kernel = Compiled(b"")
    kernel.function = 77  # type: ignore[assignment]
    assert triton_binary.function_of(kernel) == 77 and utils.loads == 0
