"""Reductions over rows that are put together: their loops are cut where one part ends."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from kernel_support import layouts_of
from torch import Tensor
from torch.nn import functional as F

import dynamo
from inductor.codegen.cpp.kernel import print_kernel
from inductor.ir.body import trace_body
from inductor.scheduler.schedule import Kernel
from inductor.scheduler.split import find_parts

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rolled by one": lambda x: torch.roll(x, 1, -1),
    "rolled back": lambda x: torch.roll(x, -3, -1),
    "rolled twice": lambda x: torch.roll(torch.roll(x, 5, -1), 7, -1),
    "rolled in both": lambda x: torch.roll(x, (2, 40), (0, 1)),
    "rolled and added": lambda x: torch.roll(x, 33, -1) + x,
    "joined": lambda x: torch.cat((x[:, 4:], x.flip(0), x[:, :9]), 1),
    "padded": lambda x: F.pad(x, (2, 3), value=0.5),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean of exp": lambda x: x.exp().mean(-1),
    "max": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "variance": lambda x: x.var(-1),
    "any": lambda x: (x > 2).any(-1),
    "all of it": lambda x: x.sum(),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rows", ROWS)
def test_joined_rows_are_reduced_as_in_eager(rows: str, reduction: str) -> None:
    def program(x: Tensor) -> Tensor:
        return REDUCTIONS[reduction](ROWS[rows](x))

    compiled = dynamo.compile(program)
    for shape in ((3, 41), (7, 128), (4, 1500), (2, 5000)):
        x = torch.randn(shape)
        torch.testing.assert_close(
            compiled(x), program(x.double()).to(program(x).dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        rolled = torch.roll(x, 17, -1)
        return rolled.sum(-1), (rolled * 2).amax(-1)

    x = torch.randn(5, 2100).mul(8).to(dtype)
    wanted = program(x.double())
    for found, exact in zip(dynamo.compile(program)(x), wanted, strict=True):
        torch.testing.assert_close(found, exact.to(dtype), rtol=1e-2, atol=1e-2)


def test_nothing_is_masked_in_a_part() -> None:
    def body(ops, i, r):
        behind = ops.ge(ops.index_expr(r[0]), ops.index_expr(1))
        value = ops.masked(behind, lambda: ops.load("x", 512 * i[0] + r[0] - 1, torch.float32), 0)
        ops.store("out", i[0], ops.reduction("sum", value))

    kernel = Kernel("shifted", (), (trace_body((8,), (512,), body),))
    storages = {"x": torch.randn(8, 512), "out": torch.zeros(8)}
    text = print_kernel(kernel, layouts_of(storages), 1).text
    assert re.search(r"\(true \? \w+\[", text)
    assert not re.search(r"\(v\d+ \? ", text)


def test_many_parts_stay_one_loop() -> None:
    def program(x: Tensor) -> Tensor:
        at = torch.arange(600)
        for edge in (50, 100, 150, 200, 250):
            x = torch.where(at < edge, x, x * 1.5)
        return x.sum(-1)

    x = torch.randn(4, 600)
    torch.testing.assert_close(dynamo.compile(program)(x), program(x), rtol=1e-5, atol=1e-4)
    assert find_parts((), "r0", 600) == [(0, 600)]
