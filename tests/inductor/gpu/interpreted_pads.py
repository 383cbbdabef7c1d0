"""Pads of images and films by their edges as Triton's kernels, in its interpreter: one for all dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import compile_aten, compile_inference, decompositions, texts
from interpreter_repairs import repair
from torch import Tensor

import dynamo
from inductor.lowering import indexing


def interpreted(gm, example_inputs):
    return compile_inference(
        gm, example_inputs, compile_aten, decompositions=decompositions(), epilogue_in_graph=True)


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], int]] = {
    "film, edges": (lambda x: F.pad(x.relu(), (1, 2, 0, 1, 2, 0), mode="replicate") * 2, (2, 3, 3, 4, 5), 1),
    "film, mirrored": (lambda x: F.pad(x, (1, 2, 1, 1, 2, 0), mode="reflect"), (2, 3, 3, 4, 5), 1),
    "film, channels last": (lambda x: F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate").contiguous(
        memory_format=torch.channels_last_3d), (1, 8, 3, 4, 4), 1),
    "image": (lambda x: F.pad(x, (3, 1, 2, 2), mode="reflect").exp(), (2, 3, 5, 6), 1),
    "line": (lambda x: F.pad(x, (2, 1), mode="replicate") + 1, (2, 3, 7), 1),
    # Each element is read nine times here: what is dear is computed once, and so is the first dimension.
    "large edges": (lambda x: F.pad(x.tanh(), (4, 4, 4, 4), mode="replicate"), (1, 2, 4, 4), 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, dtype: torch.dtype, as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)
    as_on_gpu(indexing)
    program, size, kernels = PROGRAMS[name]
    dynamo.reset()
    texts.clear()
    x = torch.randn(size).to(dtype)
    found, wanted = dynamo.compile(program, backend=interpreted)(x), program(x)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    assert texts[-1].count("@triton.jit") == kernels, texts[-1]
