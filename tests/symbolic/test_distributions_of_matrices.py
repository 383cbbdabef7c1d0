"""Distributions over vectors: their matrices are checked without a branch on values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import MultivariateNormal

import dynamo


def by_covariance(x: torch.Tensor, matrix: torch.Tensor) -> Any:
    return MultivariateNormal(x.mean(0), matrix, validate_args=True).log_prob(x)


def by_precision(x: torch.Tensor, matrix: torch.Tensor) -> Any:
    return MultivariateNormal(x.mean(0), precision_matrix=matrix, validate_args=True).entropy()


def caught(x: torch.Tensor, matrix: torch.Tensor) -> Any:
    try:
        return MultivariateNormal(x.mean(0), matrix, validate_args=True).log_prob(x)
    except ValueError as error:
        return str(error)


def outcome(f: Any, *args: Any) -> Any:
    try:
        return f(*args)
    except ValueError as error:
        return str(error)


DEFINITE = torch.tensor([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.0]])
SKEWED = DEFINITE + torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize("f", [by_covariance, by_precision, caught])
def test_matrices_are_checked_as_eager_does(f: Any) -> None:
    compiled = dynamo.compile(f, backend="aot_eager", fullgraph=f is not caught)
    several = torch.stack([DEFINITE, DEFINITE])
    wrong = (SKEWED, -DEFINITE, torch.stack([DEFINITE, SKEWED]), DEFINITE[:2])
    x = torch.randn(2, 3)
    for matrix in (DEFINITE, *wrong, several.unsqueeze(1), DEFINITE):
        wanted = outcome(f, x, matrix)
        assert isinstance(wanted, str) == any(matrix is each for each in wrong)
        found = outcome(compiled, x, matrix)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted)
