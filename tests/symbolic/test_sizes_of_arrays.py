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
    "eye": lambda n: torch.tensor(np.eye(n)),
    "wide eye": lambda n: torch.tensor(np.eye(n, 3, dtype=np.float32)),
}
# The values too: numbers of numpy, and what arrays are filled with.
VALUES: dict[str, Callable[[int], Any]] = {
    "of ints": lambda n: torch.tensor(np.array([n, 2])),
    "of floats": lambda n: torch.tensor(np.array([n * 1.5, 2.0])),
    "filled": lambda n: torch.tensor(np.full(3, n)),
    "linspace": lambda n: torch.tensor(np.linspace(0.3, 7, n + 1)),
    "int64": lambda n: torch.arange(3) * np.int64(n),
    "float64": lambda n: torch.ones(3) * np.float64(n),
    "float64 of a float": lambda n: torch.ones(3) * np.float64(n / 3),
    "whole array": lambda n: torch.tensor(np.arange(5) * n - n),
    "array": lambda n: torch.tensor(np.arange(5) * 0.5 + n),
    "compared": lambda n: torch.tensor(np.arange(5) < n),
}


@pytest.mark.parametrize("name", [*CASES, *VALUES])
def test_one_graph_for_all_sizes(name: str) -> None:
    make, counter = {**CASES, **VALUES}[name], CompileCounter("eager")

    def f(n: int, x: torch.Tensor) -> torch.Tensor:
        return make(n) * x

    compiled = dynamo.compile(f, backend=counter)
    for n in (1, 2, 3, 5, 8, 1):
        x = torch.randn(())
        result, expected = compiled(n, x), f(n, x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()
    assert counter.frame_count <= 3 - (name in CASES)


NARROW: dict[str, Callable[[int], Any]] = {
    "int8": lambda n: np.arange(5, dtype=np.int8) * n, "quotient": lambda n: np.arange(5) // n,
    "int32": lambda n: torch.ones(2) * int(np.int32(n)), "eye": lambda n: np.eye(3, k=n),
    "returned": lambda n: np.int64(n), "kept": lambda n: {"n": [np.float64(n)]}["n"][0],
    "key": lambda n: np.int64({np.int64(n): n}[n]),
    "text": lambda n: f"{np.float64(n)} {np.int64(n)!r}",
    "asked": lambda n: np.int64(n + 1) if np.int64(n) > 2 else np.int64(-n),
    "sum": lambda n: np.int64(n) + np.float32(1),
}


@pytest.mark.parametrize("name", NARROW)
def test_what_needs_the_number_itself(name: str) -> None:
    compiled = dynamo.compile(lambda n, x: (NARROW[name](n), x + 1), backend="eager")
    for n in (1, 2, 3, 1):
        result, expected = compiled(n, torch.ones(1))[0], NARROW[name](n)
        assert type(result) is type(expected)
        np.testing.assert_array_equal(result, expected, strict=True)
