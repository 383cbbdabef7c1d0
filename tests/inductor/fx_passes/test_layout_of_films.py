"""Which films lie channels last, and that programs with them give what eager gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.driver import from_aten
from inductor.fx_passes import layout_choice


class Films(nn.Module):
    """As decoders of films: causal convolutions, group norms, an upsampling, attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(4, 16, 3), nn.Conv3d(16, 16, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv3d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"))
        y = y + self.second(F.silu(self.norm(y)))
        tokens = y.flatten(2).transpose(1, 2)
        y = y + F.scaled_dot_product_attention(tokens, tokens, tokens).transpose(1, 2).reshape_as(y)
        y = F.interpolate(y, scale_factor=(1.0, 2.0, 2.0), mode="nearest-exact")
        return self.last(y), y


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_films_of_half_precision_lie_channels_last(
    dtype: torch.dtype, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_gpu(layout_choice)
    seen: list[Any] = []
    compile_aten = from_aten.compile_aten

    def noting(module: Any, fakes: Any) -> Any:
        seen.append([arg.meta["val"].stride() for node in module.graph.nodes
                     if node.target is torch.ops.aten.convolution.default for arg in node.args[:1]])
        return compile_aten(module, fakes)

    monkeypatch.setattr(from_aten, "compile_aten", noting)
    model, x = Films().to(dtype), torch.randn(2, 4, 3, 6, 8, dtype=dtype)
    compiled = dynamo.compile(copy.deepcopy(model), fullgraph=True, options={"graph_cache": False})
    with torch.no_grad():
        found, wanted, exact = compiled(x), model(x), copy.deepcopy(model).double()(x.double())
    for ours, eager, true in zip(found, wanted, exact):
        assert ours.stride() == eager.stride() and ours.dtype is eager.dtype
        limit = 2 * (eager - true).abs().max() + 1e-2 * true.abs().max()
        assert (ours - true).abs().max() <= limit
    (strides,) = seen
    assert len(strides) == 3 and all(stride[1] == 1 for stride in strides)


def test_films_elsewhere_lie_as_they_did() -> None:
    model, x = Films(), torch.randn(2, 4, 3, 6, 8)
    compiled = dynamo.compile(copy.deepcopy(model), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
