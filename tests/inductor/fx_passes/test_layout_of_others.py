"""Operators of other libraries see eager's strides, also behind a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import dynamo


@torch.library.custom_op("layout_of_others::strides_of", mutates_args=())
def strides_of(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride())


@strides_of.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.dim(),), dtype=torch.int64)


def test_strides_are_eagers() -> None:
    def program(x, weight):
        y = F.conv2d(x, weight).relu()
        return strides_of(y), y * 2

    compiled = dynamo.compile(program)
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    for channels_last in (False, True):
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            (want, y), (got, z) = program(x, weight), compiled(x, weight)
        assert got.tolist() == want.tolist()
        assert z.stride() == y.stride()
        torch.testing.assert_close(z, y, rtol=1e-4, atol=1e-4)
