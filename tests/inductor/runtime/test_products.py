"""Our own matrix product: right for all sizes and strides, alone and inside of a compiled graph."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import dynamo
from inductor import compile_fx, library_kernels
from inductor.config import config
from inductor.cpu import cache_store, need_toolchain
from inductor.runtime.products import Product, load_product


@pytest.fixture(scope="module")
def product() -> Product:
    store = cache_store()
    return load_product(store, need_toolchain(store))


@pytest.fixture
def always_ours(monkeypatch: pytest.MonkeyPatch, product: Product) -> Any:
    monkeypatch.setattr(library_kernels._Chooser, "fastest", lambda chooser, linear: "ours")
    rewritten = []

    by_ours = library_kernels.REWRITES["ours"]

    def counted(rewriter: Any, node: Any, linear: Any) -> Any:
        rewritten.append(node)
        return by_ours(rewriter, node, linear)

    monkeypatch.setitem(library_kernels.REWRITES, "ours", counted)
    with config.patch(library_kernels="measure"), torch.no_grad():
        yield
    assert len(rewritten) >= 2


def assert_right(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: Any) -> None:
    expected = x.double() @ w.double() + (0 if b is None else b)
    scale = (x.double().abs() @ w.double().abs()).max().clamp(min=1)
    assert ((out - expected).abs().max() / scale) < 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_sizes_and_strides(product: Product, seed: int) -> None:
    numbers = random.Random(seed)
    for _ in range(12):
        sizes = [1, 2, 13, 15, 31, 33, 385, 769, numbers.randint(1, 1700)]
        m, n, k = (numbers.choice(sizes) for _ in "mnk")
        x = torch.randn(m, k + numbers.choice([0, 3]))[:, :k]
        weights = [torch.randn(k, n), torch.randn(n, k).t(), torch.randn(2 * k, 2 * n)[::2, ::2]]
        weight = numbers.choice(weights)
        bias = numbers.choice([None, torch.randn(n)])
        out = torch.full((m, n), float("nan"))
        threads = numbers.choice([1, 2, 3, 8])
        product.multiply(x, weight, bias, out, threads)
        assert_right(out, x, weight, bias)
        out.fill_(float("nan"))
        product.multiply(x, product.panels(weight), bias, out, threads)
        assert_right(out, x, weight, bias)


def test_special_values_spread_as_in_any_product(product: Product) -> None:
    x, w = torch.randn(20, 50), torch.randn(50, 40)
    x[3, 7], x[5, 2], w[9, 11] = float("nan"), float("inf"), float("-inf")
    out = torch.empty(20, 40)
    product.multiply(x, w, None, out, 1)
    torch.testing.assert_close(out, x @ w, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [False, True])
def test_inside_of_a_graph(always_ours: None, columns: bool) -> None:
    def program(x: Any, w: Any, b: Any, v: Any) -> Any:
        h = torch.addmm(b, x.sin(), w if columns else w.t())
        return h[:, 3:].t(), h.relu() @ v, h

    x, b, v = torch.randn(37, 70), torch.randn(45), torch.randn(45, 33)
    w = torch.randn(70, 45) if columns else torch.randn(45, 70)
    compiled = compile_fx(torch.fx.symbolic_trace(program), [x, w, b, v])
    for _ in range(3):
        x, b = torch.randn(37, 70), torch.randn(45)
        torch.testing.assert_close(compiled(x, w, b, v), program(x, w, b, v), rtol=1e-4, atol=1e-4)


def test_sizes_known_at_a_call(always_ours: None) -> None:
    w, v = torch.randn(45, 70), torch.randn(45, 31)

    def program(x: Any) -> Any:
        return (x.cos() @ w.t()).tanh() @ v

    compiled = dynamo.compile(program, dynamic=True)
    for rows in (5, 9, 64, 300):
        x = torch.randn(rows, 70)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-3, atol=1e-3)
