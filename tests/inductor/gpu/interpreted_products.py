"""Sums of products in loops, in the interpreter: one instruction for each term, and no mask for what
was not read."""

from __future__ import annotations

import pytest
import torch
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair

import dynamo
from inductor.codegen.triton import configs, plan

SMALL = ((1, 64, 1),)


@pytest.fixture(autouse=True)
def loops(monkeypatch) -> None:
    """Short rows in short tiles, the last of which is not full."""
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 0)
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 0)
    monkeypatch.setattr(configs, "LOOP_BLOCKS", SMALL)
    monkeypatch.setattr(configs, "_for_few_rows", lambda rows: [])


def run(program, *given):
    found = dynamo.compile(program, backend=interpreted)(*given)
    torch.testing.assert_close(found, program(*given), rtol=1e-5, atol=1e-4)
    return texts[-1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_halves(dtype) -> None:
    a, b = (torch.randn(20, 100).to(dtype) for _ in range(2))
    text = run(lambda a, b: (a.float() * b.float()).sum(-1), a, b)
    assert "tl.fma(" in text and "tl.where(" not in text


def test_products_that_are_rounded() -> None:
    """Eager rounds these before they are added."""
    a, b = torch.randn(20, 100), torch.randn(20, 100)
    text = run(lambda a, b: (a * b).sum(-1), a, b)
    assert "tl.fma(" not in text and "tl.where(" not in text


def test_products_with_other_uses() -> None:
    a, b = torch.randn(20, 100).half(), torch.randn(20, 100).half()

    def program(a, b):
        product = a.float() * b.float()
        return product.sum(-1) + product.amax(-1)

    assert "tl.fma(" not in run(program, a, b)


def test_beyond_the_last_column_there_is_nothing() -> None:
    """Zero times what is infinite for the whole row would be none; what is not zero of zero is masked."""
    a, b = torch.rand(20, 100).half() + 1, torch.randn(20, 1).half()
    b[3], b[4] = torch.inf, -torch.inf
    text = run(lambda a, b: (a.float() * b.float()).sum(-1), a, b)
    assert "tl.where(" in text and "tl.fma(" not in text
    assert "tl.where(" in run(lambda a, b: (a.float().cos() * b.float().exp()).sum(-1), a, b.clamp(-9, 9))
    c = torch.randn(20, 100).half()
    assert "tl.where(" in run(lambda a, c: (a.float() + 1).sum(-1) + c.float().sum(-1), a, c)
    assert "tl.where(" not in run(lambda a, c: (a.float() - c.float().abs() * a.float()).sum(-1), a, c)


def test_what_is_not_finite_within() -> None:
    a, b = torch.randn(20, 100).half(), torch.randn(20, 100).half()
    a[1, 99], a[2, 0], b[2, 0], b[3, 64] = torch.inf, torch.inf, 0, torch.nan
    found = dynamo.compile(lambda a, b: (a.float() * b.float()).sum(-1), backend=interpreted)(a, b)
    torch.testing.assert_close(found, (a.float() * b.float()).sum(-1), rtol=1e-5, atol=1e-4, equal_nan=True)
