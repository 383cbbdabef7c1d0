"""Triton kernels of the program, on the GPU (elsewhere `tests/inductor/gpu` runs them in Triton's interpreter)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.gpu.support import DEVICE

if DEVICE == "cpu":
    pytest.skip("the interpreter runs them", allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import dynamo  # noqa: E402
from dynamo.graph_operators.kernel_calls import KernelCall, operators  # noqa: E402
from tests.gpu.user_kernels import *  # noqa: E402, F403
from tests.gpu.user_kernels import MODES, add_scaled, autotuned, by_function, check, data, heuristic  # noqa: E402


def current_gpu(x: Any) -> Any:
    """As libraries of kernels launch them."""
    for place in (x.device, x.device.index, x.get_device(), -1):
        with torch.cuda.device(place):
            y = torch.empty_like(x)
            add_scaled[(4,)](x, x, y, x.numel(), 0.5, BLOCK=64)
            x = y
    torch.cuda.set_device(x.device)
    torch.cuda._lazy_init()
    count = torch.cuda.get_device_properties(x.device).multi_processor_count
    return x * 2 + torch.cuda.current_device() + count


@pytest.mark.parametrize("mode", MODES)
def test_kernels_of_the_current_gpu(mode: str | None) -> None:
    check(current_gpu, lambda: (data(200),), mode=mode, calls=2)


@triton.jit
def add_number(x_ptr, out_ptr, n, more, half, is_whole, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float64) + more
    if not is_whole:
        x += half
    tl.store(out_ptr + offsets, x, mask=mask)


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that Triton's Python has launched. Noted where no program is traced: a method of
    the kernel's that is patched belongs to the program, and its effects are replayed."""
    seen: list[str] = []
    facts = triton.compiler.CompiledKernel.launch_metadata

    def noting(kernel: Any, *args: Any) -> Any:
        seen.append(kernel.name)
        return facts(kernel, *args)

    monkeypatch.setattr(triton.compiler.CompiledKernel, "launch_metadata", noting)
    return seen


def add_number_site() -> Any:
    names, kinds = ("x_ptr", "out_ptr", "n", "more", "half", "is_whole"), ("tensor", "tensor", "int", "int", "float", "bool")
    return operators.of(add_number, KernelCall(names, kinds, (("BLOCK", 64),), ((),)))


def test_later_launches(by_triton: list[str]) -> None:
    """Alignments, dtypes and numbers change between calls: each has the kernel that it wants."""
    operator = add_number_site()
    numbers = 1, 16, 17, 0, -1, -16, (1 << 40), (1 << 40) + 1, -(1 << 40) - 3
    for turn in range(2):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
                for size in (1, 64, 199, 512):
                    for more in numbers if size == 199 else (turn * 2 + 3,):
                        x = data(size + 1, dtype=dtype)[first:][:size]
                        out = torch.full((size + 1,), float("nan"), dtype=torch.float64, device=DEVICE)[second:][:size]
                        operator(x, out, size, more, 0.5, turn == 0, [-(-size // 64), 1, 1])
                        wanted = x.double() + more + (0.0 if turn == 0 else 0.5)
                        torch.testing.assert_close(out, wanted, atol=0, rtol=0)
        assert bool(by_triton) == (turn == 0), by_triton
        by_triton.clear()


def test_later_launches_on_streams(by_triton: list[str]) -> None:
    """What a launch reads is written late, on its own stream."""
    operator = add_number_site()
    streams = [torch.cuda.Stream() for _ in range(2)]
    x, out = data(4096, dtype=torch.float64), torch.empty(4096, dtype=torch.float64, device=DEVICE)
    operator(x, out, 4096, 2, 0.5, True, [64, 1, 1])
    by_triton.clear()
    for turn in range(4):
        stream = streams[turn % 2]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y, z = torch.zeros_like(x), torch.empty_like(x)
            torch.cuda._sleep(10**7)
            y.copy_(x * turn)
            operator(y, z, 4096, 2, 0.5, True, [64, 1, 1])
        stream.synchronize()
        torch.testing.assert_close(z, x * turn + 2, atol=0, rtol=0)
        torch.cuda.current_stream().wait_stream(stream)
    assert not by_triton


@pytest.mark.parametrize("program", [by_function, autotuned, heuristic])
def test_later_launches_of_programs(program: Any, by_triton: list[str]) -> None:
    """Tuned kernels, too, for each size that they are tuned for."""
    compiled = dynamo.compile(program, fullgraph=True)
    for turn in range(3):
        for size in (96, 400, 97, 1024):
            x, y = data(size), data(size)
            by_triton.clear()
            found = compiled(x, y)
            assert not by_triton or turn == 0, by_triton
            torch.testing.assert_close(found, program(x, y))


def test_profilers_see_later_launches(by_triton: list[str]) -> None:
    compiled = dynamo.compile(by_function, fullgraph=True)
    x, y = data(200), data(200)
    for _ in range(3):
        compiled(x, y)
    names: list[str] = []
    hook = lambda facts: names.append(facts.get()["name"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        compiled(x, y)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert "add_scaled" in names
    by_triton.clear()
    torch.testing.assert_close(compiled(x, y), by_function(x, y))
    assert by_triton == ["add_scaled"], "eager's"


def test_later_launches_in_threads(by_triton: list[str]) -> None:
    """One that has no context of CUDA's yet."""
    operator = add_number_site()
    x, found = data(512, dtype=torch.float64), []

    def launch() -> None:
        out = torch.empty_like(x)
        operator(x, out, 512, 2, 0.5, True, [8, 1, 1])
        found.append(out)

    launch()
    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(found) == 5
    for out in found:
        torch.testing.assert_close(out, x + 2, atol=0, rtol=0)
