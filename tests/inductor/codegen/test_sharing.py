"""Kernels that differ only in what indices may be are not one kernel."""

from __future__ import annotations

import pytest
import torch

import dynamo


@pytest.mark.parametrize("rows", [(6, 9), (9, 6)])
def test_gathers_from_tables_of_two_lengths(rows: tuple[int, int]) -> None:
    """Many kernels of one text: where each ends, how a negative index wraps, is its own table's."""
    few, many = (torch.randn(count, 16) for count in rows)
    indices = [torch.randint(-count, count, (50,)) for count in rows]
    indices[0][7], indices[1][7] = -1, -1

    def gather(a, b):
        x = torch.cat([few[a + i] for i in (0, 0)] * 5, -1)
        y = torch.cat([many[b + i] for i in (0, 0)] * 5, -1)
        return x + y

    compiled = dynamo.compile(gather, fullgraph=True)
    torch.testing.assert_close(compiled(*indices), gather(*indices), rtol=0, atol=0)

    for number, count in enumerate(rows):
        wrong = [index.clone() for index in indices]
        wrong[number][3] = count
        with pytest.raises(IndexError, match=f"index {count} is out of bounds"):
            compiled(*wrong)
