"""Operators of other libraries, and those of ATen that need it, see eager's strides behind a convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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


CONV = torch.nn.Conv2d(3, 16, 3, padding=1)
LSTM = torch.nn.LSTM(64, 4, batch_first=True)


def rows(x: Tensor) -> Tensor:
    return CONV(x).view(-1, 16, 64)


def attention(x: Tensor) -> Tensor:
    q = rows(x).view(-1, 2, 8, 64)
    return F.scaled_dot_product_attention(q, q * 2, q + 1)


NEED_STRIDES = {
    "attention": attention,
    "lstm": lambda x: LSTM(rows(x))[0],
    "group norm": lambda x: F.group_norm(rows(x).transpose(1, 2).transpose(1, 2), 4),
    "group norm 5d": lambda x: F.group_norm(CONV(x).view(-1, 16, 4, 2, 8), 4),
    "group norm 4d": lambda x: F.group_norm(CONV(x), 4).relu(),
    "distances": lambda x: F.pdist(rows(x)[0]),
    "shuffled": lambda x: F.channel_shuffle(CONV(x), 2),
    "pooled": lambda x: F.adaptive_max_pool2d(F.interpolate(CONV(x), scale_factor=2.0), 3),
}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("name", NEED_STRIDES)
@torch.no_grad()
def test_kernels_of_aten_that_need_strides(name: str, backend: str) -> None:
    program = NEED_STRIDES[name]
    dynamo.reset()
    compiled = dynamo.compile(program, backend=backend)
    for batch in (1, 2):
        x = torch.randn(batch, 3, 8, 8)
        want, got = program(x), compiled(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
