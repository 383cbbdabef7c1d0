"""The statistics that `native_layer_norm` and its like give in half precision have eager's dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo

aten = torch.ops.aten
CALLS = {
    "layer": lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5),
    "layer, aten": lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5),
    "batch": lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_dtypes_are_eagers(name: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        y, mean, scale = CALLS[name](x)
        return y, mean, scale, mean.dtype, mean.dtype is torch.float32

    x = torch.randn(3, 4, dtype=dtype)
    for backend in ("eager", "inductor"):
        wanted, found = program(x), dynamo.compile(program, backend=backend)(x)
        assert wanted[3:] == found[3:]
        for one, other in zip(found[:3], wanted[:3], strict=True):
            torch.testing.assert_close(one, other)


def test_a_layer_of_half_precision_is_in_the_graph() -> None:
    layer = torch.nn.LayerNorm(4).bfloat16()
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    compiled = dynamo.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
