"""Convolutions of films over patches as GEMMs: values, strides, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot.capture import capture_forward
from inductor.fx_passes import patches
from inductor.fx_passes.patches import patches_as_gemms

aten = torch.ops.aten
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(patches)


def rewritten(x: torch.Tensor, weight: torch.Tensor, bias: Any, *form: Any) -> tuple[fx.GraphModule, torch.Tensor]:
    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return aten.convolution(x, weight, bias, *form)

    captured = capture_forward(fx.symbolic_trace(program), [x, weight]).module
    module = patches_as_gemms(captured)
    module.graph.lint()
    return module, program(x, weight)


@pytest.mark.parametrize(("size", "window"), [((4, 6, 8), (2, 3, 4)), ((3, 9, 8), (1, 2, 2)), ((5, 4, 7), (2, 4, 3))], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.every_combination
def test_values(size: Any, window: Any, last: bool) -> None:
    x, weight = torch.randn(2, 3, *size).to(BF16), torch.randn(6, 3, *window).to(BF16)
    if last:
        x = x.contiguous(memory_format=torch.channels_last_3d)
    form: Any = (list(window), [0] * 3, [1] * 3, False, [0] * 3, 1)
    module, wanted = rewritten(x, weight, None, *form)
    assert not module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    (found,) = fx.Interpreter(module).run(x, weight)
    assert found.shape == wanted.shape and found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize(("stride", "padding", "groups", "dtype"), [
    (1, 0, 1, BF16), (2, 1, 1, BF16), (2, 0, 2, BF16), (2, 0, 1, torch.float32),
])  # fmt: skip
def test_others_stay(stride: int, padding: int, groups: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 4, 4, 6, 8, dtype=dtype), torch.randn(6, 4 // groups, 2, 2, 2, dtype=dtype)
    form: Any = ([stride] * 3, [padding] * 3, [1] * 3, False, [0] * 3, groups)
    module, _ = rewritten(x, weight, None, *form)
    assert module.graph.find_nodes(op="call_function", target=aten.convolution.default)
