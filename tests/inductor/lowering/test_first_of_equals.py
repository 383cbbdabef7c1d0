"""Of equal elements `argmax` and `argmin` give the first one, in whatever order they lie in memory."""

from __future__ import annotations

import torch

import dynamo
from tests.parametrize import rotated


@rotated("order, dtype, dynamic", [(2, 1, 0), (1, 2, 0), (2, 0, 1), (0, 2, 1)],
         [torch.int8, torch.float32, torch.bfloat16], [False, True])
def test_of_a_permuted_tensor(order: tuple[int, ...], dtype: torch.dtype, dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(), (x + 1).argmin(), x.flatten(1).argmax(-1), (x / x).argmax()

    compiled = dynamo.compile(f, dynamic=dynamic)
    for size in (3, 6, 17):
        x = torch.arange(size * (size + 1) * (size + 2)).remainder(5).mul(-3).remainder(4).to(dtype)
        x = x.view(size, size + 1, size + 2).permute(order)
        for ours, eagers in zip(compiled(x), f(x), strict=True):
            assert torch.equal(ours, eagers)


def test_of_channels_last() -> None:
    x = torch.randint(0, 3, (2, 4, 5, 6)).float().to(memory_format=torch.channels_last)
    assert torch.equal(dynamo.compile(lambda x: x.relu().argmax())(x), x.argmax())
