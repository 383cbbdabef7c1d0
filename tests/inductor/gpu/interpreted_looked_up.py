"""GEMMs of single rows with matrices that are looked up as Triton's kernels, in its interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import compile_aten, compile_inference, decompositions, texts
from interpreter_repairs import repair
from torch import Tensor

import dynamo
from inductor.fx_passes import looked_up_matrices


def in_loops(gm, example_inputs):
    return compile_inference(
        gm, example_inputs, lambda module, fakes: compile_aten(looked_up_matrices.multiply_in_loops(module), fakes),
        decompositions=decompositions(), epilogue_in_graph=True)


def adapters(x: Tensor, down: Tensor, up: Tensor, places: Tensor) -> Tensor:
    low = torch.bmm(x[:, None], down[places])
    return torch.bmm(F.silu(low), up[places])[:, 0] * 2 + x


def turned(x: Tensor, down: Tensor, up: Tensor, places: Tensor) -> Tensor:
    return torch.bmm(down[places].transpose(1, 2), x[:, :, None]).squeeze(2)


def summed(x: Tensor, down: Tensor, up: Tensor, places: Tensor) -> Tensor:
    """The gradient of a table: products of columns and rows, added at the places."""
    return torch.zeros_like(down).index_put((places,), torch.bmm(x[:, :, None], up[places][:, :1]), accumulate=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", [adapters, turned, summed])
def test_program(program: object, dtype: torch.dtype, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(looked_up_matrices)
    dynamo.reset()
    texts.clear()
    given = [torch.randn(size).to(dtype) for size in ((21, 48), (5, 48, 33), (5, 33, 48))]
    if program is summed:
        given[2] = torch.randn(5, 48, 33).to(dtype)
    places = torch.randint(-5, 5, (21,))
    found = dynamo.compile(program, backend=in_loops)(*given, places)  # type: ignore[arg-type]
    exact = program(*[value.double() for value in given], places)  # type: ignore[operator]
    assert found.dtype is dtype
    limit = (1e-6 if dtype is torch.float32 else 2 ** -7) * exact.abs().max()
    assert (found - exact).abs().max() <= limit
    assert texts and "aten::bmm" not in texts[-1]
