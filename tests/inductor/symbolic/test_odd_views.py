"""Views of stored tensors whose dtype has no kernels, in sizes that are not known to merge."""

from __future__ import annotations

import pytest
import torch

import dynamo
from dynamo.base.config import config


def _halved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x[x.shape[0] // 2 :].cumsum(-1)
    flat = total.flatten()
    return total, flat[:7] * 2, flat


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_of_the_rest_of_rows(dtype: torch.dtype) -> None:
    compiled = dynamo.compile(_halved, dynamic=True)
    with config.patch(suppress_errors=False):
        for rows in (6, 5, 9):
            x = torch.randn(rows, 3, dtype=dtype)
            found = compiled(x)
            torch.testing.assert_close(found, _halved(x))
            assert found[0].data_ptr() == found[2].data_ptr()
