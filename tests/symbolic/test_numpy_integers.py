"""Numpy's integers where Python asks for an index: none of them is an int of Python."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch

import dynamo

NUMBERS = ["np.int64(4)", "np.uint8(4)", "np.prod(x.shape[1:])", "np.arange(9)[4]", "np.array(4)", "np.bool_(True)",
           "np.float64(4)"]
USES = """
range(n); list(range(1, n)); values[n]; values[:n]; values[n:n + 2]; values[::n]; (1, 2, 3, 4, 5)[n]; "abcdef"[n]
[1] * n; n * [1]; (1, 2) * n; times(values, n); list(enumerate(values, n)); values.__getitem__(n); x.shape[n - 4]
x.shape[:n]; x.size()[n - 3:]; replaced(values, n); removed(values, n); collections.deque(values)[n]
turned(values, n); list(reversed(range(n))); torch.Size((n, 2)).numel(); operator.index(n); len(range(n))
"""


def times(values: list[int], n: Any) -> list[int]:
    values *= n
    return values


def replaced(values: list[int], n: Any) -> list[int]:
    values[n] = 7
    values[n + 1 :] = [8]
    return values


def removed(values: list[int], n: Any) -> list[int]:
    del values[n]
    return values


def turned(values: list[int], n: Any) -> Any:
    turning = collections.deque(values)
    turning.rotate(n)
    return turning


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("use", [use.strip() for use in USES.replace("\n", ";").split(";") if use.strip()])
def test_as_an_index(number: str, use: str) -> None:
    names = dict(globals())
    exec(f"""
def f(x):
    values = list(range(9))
    y = x + 1
    try:
        n = {number}
        result = {use}
    except Exception as error:
        result = type(error)
    return y, values, result
""", names)
    f, x = names["f"], torch.ones(3, 4)
    want, got = f(x), dynamo.compile(f, backend="eager")(x)
    assert torch.equal(want[0], got[0])
    assert repr(want[1:]) == repr(got[1:])


def test_in_one_graph() -> None:
    @dynamo.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        n = np.prod(x.shape[1:])
        for _ in range(n):
            x = x + [1, 2, 3, 4, 5][n]
        return x, [0, 1, 2, 3, 4][:n]

    got = f(torch.zeros(3, 4))
    assert torch.equal(got[0], torch.full((3, 4), 20.0)) and got[1] == [0, 1, 2, 3]


def test_functions_of_integers() -> None:
    def f(x: torch.Tensor, chunk: int) -> torch.Tensor:
        step = np.lcm(chunk, 6) + np.gcd(chunk, 6) * 100 + np.clip(chunk, 1, 3) * 1000
        step = step + np.fmod(chunk, 3) + np.fmax(chunk, 1) + np.fmin(chunk, 1) + np.negative(chunk)
        return x + 1 if x.shape[0] % np.lcm(chunk, 6) else x * int(step + np.exp2(chunk))

    x = torch.randn(12, 3)
    compiled = dynamo.compile(f, fullgraph=True)
    for chunk in (4, 5, 12):
        torch.testing.assert_close(compiled(x, chunk), f(x, chunk))
