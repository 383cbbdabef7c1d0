"""Numpy's functions of matrices and order, and methods of universal functions: one graph, and
numpy's values, also where numbers are infinite, NaN or zeros with a sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynamo
from dynamo.symbolic.numpy.array_algebra import TAKES_THE_ITEM
from dynamo.testing import CompileCounter

Array = Any
FUNCTIONS: dict[str, Callable[[Array, Array], Any]] = {
    "floor division": lambda a, b: (a // b, a // 0.3, 2.5 // b, np.floor_divide(a, -0.7)),
    "remainder": lambda a, b: (a % b, a % -0.3, 2.5 % b, np.remainder(a, b)),
    "divmod": lambda a, b: (divmod(a, b), divmod(a, 0.3), divmod(7.0, b)),
    "in place": lambda a, b: (np.add(a, b, out=np.empty_like(a)), np.empty((2, 3)).shape),
    "reduce": lambda a, b: (np.add.reduce(a), np.multiply.reduce(b, axis=1), np.maximum.reduce(a),
                            np.minimum.reduce(a, axis=None), np.logical_or.reduce(a > 0)),
    "accumulate": lambda a, b: (np.add.accumulate(a + 1), np.multiply.accumulate(b, axis=1)),
    "outer": lambda a, b: (np.multiply.outer(a, b), np.subtract.outer(a[0], b), np.maximum.outer(a, b[0])),
    "norm": lambda a, b: (np.linalg.norm(a), np.linalg.norm(a[0]), np.linalg.norm(b, axis=1),
                          np.linalg.norm(a, ord=1, axis=0, keepdims=True), np.linalg.norm(b[0], np.inf)),
    "matrices": lambda a, b: (np.trace(a), np.trace(a, 1), np.kron(a, b), np.cross(a, b)),
    "einsum": lambda a, b: (np.einsum("ij,kj->ik", a, b), np.einsum("ij->j", a)),
    "diff": lambda a, b: (np.diff(a), np.diff(a, 2), np.diff(b, axis=0)),
    "take": lambda a, b: (np.take(a, [0, -1], axis=1), a.take([2, 0])),
    "round": lambda a, b: (np.round(a, 1), a.round(), np.round(b, 2)),
    "median": lambda a, b: (np.median(a), np.median(a, axis=0), np.median(b, axis=1)),
    "quantile": lambda a, b: (np.quantile(a, 0.4), np.percentile(a, 30, axis=1), np.quantile(b, 1.0, axis=0),
                              np.percentile(b, 50), np.quantile(a, 0 if TAKES_THE_ITEM else 0.0)),
    "select": lambda a, b: np.select([a > 0.5, b > 0.2], [a, b], -1.0),
}
ODD = np.array([[0.0, -0.0, 1.5], [np.inf, -2.25, np.nan]])
PLAIN = np.array([[2.0, -3.0, 0.5], [1.25, 4.0, -1.0]])


def equal(want: Any, got: Any) -> bool:
    if isinstance(want, tuple):
        return len(want) == len(got) and all(map(equal, want, got))
    if isinstance(want, np.ndarray | np.generic):
        signs = np.signbit(want) == np.signbit(got) if want.dtype.kind == "f" else True
        close = np.allclose(want, got, rtol=1e-6 if want.dtype == np.float32 else 1e-12, equal_nan=True)
        return (type(want) is type(got) and want.dtype == got.dtype and want.shape == got.shape
                and close and bool(np.all(signs | (want != 0))))
    return bool(want == got)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_numpy(name: str, dtype: Any) -> None:
    counter = CompileCounter()

    def f(a: Array, b: Array, x: torch.Tensor) -> Any:
        return FUNCTIONS[name](a, b), x + 1

    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    fresh = np.random.default_rng(7).standard_normal((2, 2, 3))
    pairs = [(fresh[0], fresh[1]), (ODD, PLAIN), (PLAIN, ODD), (PLAIN, PLAIN)]
    for a, b in pairs:
        a, b = a.astype(dtype), b.astype(dtype)
        with np.errstate(all="ignore"):
            want = f(a, b, torch.ones(2))[0]
        assert equal(want, compiled(a, b, torch.ones(2))[0]), (a, b, want)
    assert counter.frame_count == 1


def test_a_determinant() -> None:
    def f(a: Array) -> Any:
        return np.linalg.det(a @ a.T + np.eye(2))

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    a = np.random.default_rng(3).standard_normal((2, 3))
    assert np.isclose(f(a), compiled(a), rtol=1e-12)


@pytest.mark.parametrize("call", [
    lambda a: np.linalg.inv(a @ a.T), lambda a: np.flip(a), lambda a: np.add.reduceat(a, [0, 1]),
    lambda a: np.linalg.norm(a, "nuc"), lambda a: np.take(a, [0, 1], mode="wrap"), lambda a: np.quantile(a, [0.1, 0.4]),
    lambda a: np.einsum("ii->i", a @ a.T), lambda a: np.median(a, axis=(0, 1)),
])
def test_what_is_left_to_numpy(call: Callable[[Array], Any]) -> None:
    compiled = dynamo.compile(lambda a: call(a), backend="eager")
    a = np.random.default_rng(5).standard_normal((2, 3))
    assert np.allclose(call(a), compiled(a))


def test_sums_of_negative_zeros() -> None:
    def f(a: Array, t: torch.Tensor) -> Any:
        return np.cumsum(a), np.cumsum(a, axis=1), np.add.accumulate(a), t + 1

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for dtype in (np.float32, np.float64):
        a = np.array([[-0.0, -0.0, 1.0, -1.0], [-0.0, 0.0, -0.0, np.nan], [-0.0] * 4], dtype)
        for want, got in zip(f(a, torch.ones(1))[:3], compiled(a, torch.ones(1))[:3], strict=True):
            assert np.array_equal(want, got, equal_nan=True)
            assert (np.signbit(want) == np.signbit(got))[~np.isnan(want)].all()


@pytest.mark.parametrize("q", [0, 1, 0.0, 1.0, 0.25])
def test_quantiles_beside_infinities(q: float) -> None:
    def f(a: Array, t: torch.Tensor) -> Any:
        return np.quantile(a, q), t + 1

    compiled = dynamo.compile(f, backend="eager", fullgraph=type(q) is float or TAKES_THE_ITEM)
    for a in (np.array([-np.inf, 1.0, 2.0]), np.array([1.0, np.inf, -np.inf]), np.array([np.nan, 1.0, 0.0])):
        with np.errstate(invalid="ignore"):
            want = f(a, torch.ones(1))[0]
        assert np.array_equal(want, compiled(a, torch.ones(1))[0], equal_nan=True)
