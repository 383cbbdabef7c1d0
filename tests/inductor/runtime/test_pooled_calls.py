"""What library calls of a compiled graph allocate comes from the pool, and goes back to it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor.driver.compile_fx import compile_fx
from inductor.runtime import _launch
from tests.common import new_cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any) -> Any:
    _launch.release_memory()
    with new_cache(tmp_path):
        yield


def convolution() -> tuple[Any, list[torch.Tensor]]:
    inputs = [torch.randn(2, 8, 32, 32), torch.randn(16, 8, 3, 3)]
    module = torch.fx.symbolic_trace(lambda x, w: (F.conv2d(x, w) * 2,))
    return compile_fx(module, inputs), inputs


def test_results_of_calls_use_memory_again() -> None:
    compiled, inputs = convolution()
    compiled(*inputs)
    before = _launch.report_memory()
    for _ in range(5):
        compiled(*inputs)
    after = _launch.report_memory()
    assert after["new_blocks"] == before["new_blocks"]
    assert after["reused_blocks"] >= before["reused_blocks"] + 5
    assert after["live_bytes"] == before["live_bytes"]


def test_a_result_that_leaves_keeps_its_memory() -> None:
    module = torch.fx.symbolic_trace(lambda x, w: (F.conv2d(x, w),))
    inputs = [torch.randn(2, 8, 32, 32), torch.randn(16, 8, 3, 3)]
    compiled = compile_fx(module, inputs)
    kept = [compiled(x, inputs[1])[0] for x in (inputs[0], inputs[0] + 1)]
    compiled(inputs[0] + 2, inputs[1])
    torch.testing.assert_close(kept[0], F.conv2d(*inputs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(kept[1], F.conv2d(inputs[0] + 1, inputs[1]), rtol=1e-4, atol=1e-4)


def test_eager_operators_are_left_alone() -> None:
    compiled, inputs = convolution()
    compiled(*inputs)
    before = _launch.report_memory()
    x = torch.randn(256, 256)
    for call in (F.gelu, torch.mm, F.softmax):  # gelu allocates through the raw interface
        call(x, x) if call is torch.mm else call(x) if call is F.gelu else call(x, -1)
    big = torch.empty(1 << 20)
    big.resize_(1 << 21)
    del big, x
    gc.collect()
    assert _launch.report_memory() == before


def test_released_memory_is_gone() -> None:
    compiled, inputs = convolution()
    compiled(*inputs)
    assert _launch.report_memory()["cached_bytes"] > 0
    _launch.release_memory()
    report = _launch.report_memory()
    assert (report["cached_bytes"], report["arena_bytes"]) == (0, 0)
    assert torch.isfinite(compiled(*inputs)[0]).all()


def test_reset_gives_memory_back() -> None:
    compiled, inputs = convolution()
    compiled(*inputs)
    assert _launch.report_memory()["cached_bytes"] > 0
    dynamo.reset()
    assert _launch.report_memory()["cached_bytes"] == 0
