"""What cuDNN's backward of attention is given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.capture import capture_forward
from inductor.fx_passes.attention.gradients import lay_gradients_as_results

aten = torch.ops.aten
B, H, S, D = 2, 3, 8, 16
BACKWARD = aten._scaled_dot_product_cudnn_attention_backward.default


def graph_of(gradient: torch.Tensor, result: torch.Tensor) -> fx.GraphModule:
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    q = torch.empty(B, H, S, D, dtype=torch.bfloat16, device="meta")
    lse, seed = torch.empty(B, H, S, device="meta"), torch.empty((), dtype=torch.int64, device="meta")
    fakes = [FakeTensor(mode, value, gpu) for value in (gradient, q, result, lse, seed)]

    def program(gradient: Any, q: Any, result: Any, lse: Any, seed: Any) -> Any:
        return BACKWARD(gradient, q, q, q, result, lse, seed, seed, None, None, None, S, S, 0.0, False)[0]

    return capture_forward(fx.symbolic_trace(program), fakes).module


def laid(*stride: int) -> torch.Tensor:
    return torch.empty(1 << 20, dtype=torch.bfloat16, device="meta").as_strided((B, H, S, D), stride)


ROWS, HEADS = (S * H * D, D, H * D, 1), (H * S * D, S * D, D, 1)


@pytest.mark.parametrize("result", [ROWS, HEADS], ids=str)
@pytest.mark.parametrize("gradient", [ROWS, HEADS, (S * 500, D, 500, 1)], ids=str)
@pytest.mark.every_combination
def test_it_lies_as_the_result(gradient: Any, result: Any) -> None:
    module = lay_gradients_as_results(graph_of(laid(*gradient), laid(*result)))
    module.graph.lint()
    (node,) = module.graph.find_nodes(op="call_function", target=BACKWARD)
    given = node.args[0].meta["val"]
    assert tuple(given.shape) == (B, H, S, D) and given.stride() == result
    assert (node.args[0].op == "placeholder") == (gradient == result)
    assert math.copysign(1.0, node.args[13]) == -1.0  # a plan of our own
