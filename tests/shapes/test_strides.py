"""Parts of longer tensors, whose strides change from call to call along with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

# Rows of a part, and of what it is a part of: as of a cache that grows and is cut.
LENGTHS = [(32, 50), (33, 51), (34, 60), (36, 61), (37, 64), (38, 77)]


def grown(k: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.cat([k, x], -2) * 2, k.sum(-1)


def attended(k: torch.Tensor, x: torch.Tensor) -> Any:
    scores = torch.softmax(x @ k.transpose(-1, -2), -1)
    return scores @ k, k.reshape(-1, 8).mean(0)


def asked(k: torch.Tensor, x: torch.Tensor) -> Any:
    return x * k.stride(1) + k.stride(2), k.is_contiguous(), k.clone(), k.transpose(0, 1) + 1


def written(k: torch.Tensor, x: torch.Tensor) -> Any:
    k[:, :, -2:] = x.detach()[:, :, -2:]
    return k * 2


PROGRAMS = [grown, attended, asked, written]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cut_tensors(program: Callable[..., Any], backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend)
    before = dynamo.counters["stats"]["frames"], dict(dynamo.counters["not_compiled"])
    for n, (rows, longest) in enumerate(LENGTHS):
        base, x = torch.randn(1, 4, longest, 8), torch.randn(1, 4, 2 + n % 3, 8)
        given = [base.clone(), base.clone()]
        results = [call(each[:, :, :rows], x) for call, each in zip((compiled, program), given, strict=True)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*given)  # what is written
    assert dynamo.counters["stats"]["frames"] - before[0] == 2
    assert dict(dynamo.counters["not_compiled"]) == before[1]


@pytest.mark.parametrize("program", [grown, attended], ids=lambda program: program.__name__)
def test_gradients_of_cut_tensors(program: Callable[..., Any]) -> None:
    compiled = dynamo.compile(program)
    before = dynamo.counters["stats"]["frames"], dict(dynamo.counters["not_compiled"])
    for n, (rows, longest) in enumerate(LENGTHS):
        base, x = (torch.randn(1, 4, size, 8, requires_grad=True) for size in (longest, 2 + n % 3))
        found = [
            torch.autograd.grad(sum(part.sin().sum() for part in call(base[:, :, :rows], x)), (base, x))
            for call in (compiled, program)
        ]
        torch.testing.assert_close(*found)
    assert dynamo.counters["stats"]["frames"] - before[0] == 2
    assert dict(dynamo.counters["not_compiled"]) == before[1]


def test_whole_tensors_are_another_program() -> None:
    """What is assumed of strides is checked: a part that is the whole has no gaps."""
    compiled = dynamo.compile(attended)
    for rows, longest in [*LENGTHS[:3], (40, 40), (41, 41), (41, 99)]:
        k, x = torch.randn(1, 4, longest, 8)[:, :, :rows], torch.randn(1, 4, 3, 8)
        torch.testing.assert_close(compiled(k, x), attended(k, x))


def test_a_transposed_tensor_stays_static() -> None:
    """Other strides alone make no stride symbolic: sizes are what they were."""
    compiled = dynamo.compile(lambda x: x * 2 + 1)
    x = torch.randn(6, 6)
    for given in (x, x.t(), x):
        torch.testing.assert_close(compiled(given), given * 2 + 1)
