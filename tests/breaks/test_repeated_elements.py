"""A write into an expanded tensor fails in eager, and the program's own handler sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


def adds(x: Any) -> Any:
    return x.add_(1)


def stores(x: Any) -> Any:
    return x[:, 1].mul_(2)


def draws(x: Any) -> Any:
    return x.uniform_()


@pytest.mark.parametrize("write", (adds, stores, draws))
def test_the_error_is_caught(write: Any) -> None:
    def f(x: Any) -> Any:
        try:
            write(x.expand(2, 2, 3))
        except RuntimeError as error:
            return str(error)
        return "written"

    want = f(torch.ones(2, 3))
    assert dynamo.compile(f, backend="eager")(torch.ones(2, 3)) == want != "written"


def test_a_branch_inside_of_a_transform() -> None:
    limit = torch.ones(2)

    def f(x: Any) -> Any:
        return torch.func.grad(lambda v: (v * (2 if limit.sum() < 9 else 3)).sum())(x)

    with dynamo.config.patch(suppress_errors=False):
        assert dynamo.compile(f, backend="eager")(torch.ones(2)).tolist() == [2, 2]
