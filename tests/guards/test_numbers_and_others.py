"""A number that a graph left open, and other kinds of values in its place."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import dynamo


class Never:
    """An operator of the program that guards must not run."""

    def __gt__(self, other: object) -> bool:
        raise AssertionError("a guard ran it")


def scaled(n: Any, t: torch.Tensor) -> torch.Tensor:
    if isinstance(n, int) and n > 2:
        return t * n
    return t


@pytest.mark.parametrize("other", [
    torch.ones(3), torch.ones(()), np.ones(3), np.float64(3.0), "s", None, 1.5, True, Fraction(7, 2),
    [4], Never(), 1,
], ids=lambda other: type(other).__name__)
def test_another_value_where_a_number_was(other: Any) -> None:
    compiled = dynamo.compile(scaled, backend="eager")
    t = torch.rand(3)
    for n in (4, 5, 6, other, 7, other):
        torch.testing.assert_close(compiled(n, t), scaled(n, t), rtol=0, atol=0)


def test_the_reason_names_the_type() -> None:
    compiled = dynamo.compile(scaled, backend="eager")
    for n in (4, 5):
        compiled(n, torch.ones(3))
    with dynamo.set_stance("fail_on_recompile"), pytest.raises(RuntimeError) as told:
        compiled(torch.ones(3), torch.ones(3))
    assert "Tensor" in str(told.value) and "compiler failed" not in str(told.value)


def sizes(t: torch.Tensor) -> tuple[Any, ...]:
    found = torch.Size((*t.shape, (t > 0).count_nonzero(), True))
    return found, [type(item) for item in found], tuple(found) in {(3, 3, 1)}


def test_an_item_of_a_size_is_an_int() -> None:
    t = torch.ones(3)
    assert dynamo.compile(sizes, backend="eager")(t) == sizes(t)


@pytest.mark.parametrize("item", [1.0, "a", None, torch.ones(2), torch.tensor(2.0)], ids=repr)
def test_an_item_that_has_no_index(item: Any) -> None:
    def made(t: torch.Tensor) -> torch.Size:
        return torch.Size([t.shape[0], item])

    with pytest.raises(TypeError) as eager:
        made(torch.ones(3))
    with pytest.raises(TypeError) as compiled:
        dynamo.compile(made, backend="eager")(torch.ones(3))
    assert str(compiled.value) == str(eager.value)
