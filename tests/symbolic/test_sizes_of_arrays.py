"""Numbers that change and are sizes of numpy arrays: one graph for all, as for torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

CASES: dict[str, Callable[[int], Any]] = {
    "ones": lambda n: torch.tensor(np.ones([2, n])),
    "stacked": lambda n: torch.tensor(np.stack([np.ones([2, n])], axis=0), dtype=torch.long)[0],
    "zeros": lambda n: torch.as_tensor(np.zeros((n, 3), dtype=np.float32)),
    "empty": lambda n: torch.from_numpy(np.empty((3, n)) * 0),
    "full": lambda n: torch.tensor(np.full((n, 2), 1.5)),
    "arange": lambda n: torch.as_tensor(np.arange(n)),
    "reshape": lambda n: torch.from_numpy(np.arange(6 * n).reshape(n, 6)),
    "transposed": lambda n: torch.from_numpy(np.arange(6 * n).reshape(6, n)).T,
    "like": lambda n: torch.tensor(np.ones_like(np.arange(2 * n).reshape(2, -1))),
    "joined": lambda n: torch.tensor(np.concatenate([np.ones(n), np.zeros(3)])),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_all_sizes(name: str) -> None:
    make, counter = CASES[name], CompileCounter("eager")

    def f(n: int, x: torch.Tensor) -> torch.Tensor:
        return make(n) * x

    compiled = dynamo.compile(f, backend=counter)
    for n in (1, 2, 3, 5, 8, 1):
        x = torch.randn(())
        result, expected = compiled(n, x), f(n, x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()
    assert counter.frame_count <= 2
