"""The largest and smallest number of rows: NaN of both signs, infinities and zeros anywhere."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_support import Runner

from inductor.ir.body import trace_body
from inductor.scheduler.schedule import Kernel

SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0]


def kernel_of(kind: str, dtype: torch.dtype, rows: int, columns: int) -> Kernel:
    def body(ops, i, r):
        value = ops.load("x", i[0] * columns + r[0], dtype)
        ops.store("out", i[0], ops.reduction(kind, value))

    name = f"{kind}_{str(dtype).split('.')[1]}_{columns}"
    return Kernel(name, (), (trace_body((rows,), (columns,), body),))


def rows_of(columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows, each special number at each place, a row of each of them alone, and pairs."""
    x = torch.randn(len(SPECIAL) * columns, columns, dtype=dtype)
    x.view(len(SPECIAL), columns, columns).diagonal(dim1=1, dim2=2).copy_(
        torch.tensor(SPECIAL, dtype=dtype)[:, None].expand(-1, columns)
    )
    alone = torch.tensor(SPECIAL, dtype=dtype)[:, None].expand(-1, columns)
    pairs = alone.repeat(len(SPECIAL), 1)
    pairs[:, columns // 2 :] = alone.repeat_interleave(len(SPECIAL), 0)[:, columns // 2 :]
    return torch.cat([x, alone, pairs]).contiguous()


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [7, 16, 40, 256])
def test_extremes_of_rows(runner: Runner, kind: str, dtype: torch.dtype, columns: int) -> None:
    x = rows_of(columns, dtype)
    storages = {"x": x, "out": torch.zeros(len(x), dtype=dtype)}
    runner.compile(kernel_of(kind, dtype, *x.shape), storages)(storages)
    want = x.amax(1) if kind == "max" else x.amin(1)
    torch.testing.assert_close(storages["out"], want, rtol=0, atol=0, equal_nan=True)
