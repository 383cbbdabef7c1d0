"""Batch norm with parameters and statistics of other dtypes than its input: eager takes or refuses
them, and so does the compiled program."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import dynamo

H, B, S, D = torch.float16, torch.bfloat16, torch.float32, torch.float64
# (input, weight, statistics)
MIXED = [
    dtypes for dtypes in itertools.product((H, B, S, D), (None, H, S), (H, B, S))
    if len({*dtypes} - {None}) > 1
]  # fmt: skip


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("dynamic", (False, True))
def test_mixed_dtypes(dynamic: bool, training: bool) -> None:
    def f(x: torch.Tensor, weight: torch.Tensor | None, statistics: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, statistics, statistics + 1, weight, None, training) * 2

    for source, scale, kept in MIXED[:: 4 if dynamic else 2]:
        x, weight = torch.randn(4, 3, 5).to(source), None if scale is None else torch.randn(3).to(scale)
        statistics = torch.rand(3).to(kept)
        compiled = dynamo.compile(f, dynamic=dynamic)
        try:
            want = f(x, weight, statistics.clone())
        except RuntimeError as eager:
            with pytest.raises(RuntimeError) as ours:
                compiled(x, weight, statistics.clone())
            assert str(ours.value) == str(eager)
        else:
            got = compiled(x, weight, statistics.clone())
            tolerance = 0.05 if source is B else 0.01
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        dynamo.reset()
