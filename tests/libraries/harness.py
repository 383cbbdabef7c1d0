"""Runs programs over other people's libraries eagerly and compiled: values, gradients, graphs.

A *model* is made anew for each run and called with inputs drawn from one seed; a *program* is a
training or sampling loop of a library, to which the compiler is given.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dynamo
from dynamo.testing import CompileCounter, assert_compiled
from tests.common import default_dtype

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    name: str
    needs: tuple[str, ...]
    graphs: int
    make: Callable[..., Any]
    single: bool


def table() -> tuple[list[Case], Callable[..., Any]]:
    """A list of cases, and the decorator that puts one into it. graphs: the most that it may take;
    single: for libraries that know no float64."""
    cases: list[Case] = []

    def case(
        *needs: str, graphs: int = 1, single: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def put(make: Callable[..., Any]) -> Callable[..., Any]:
            cases.append(Case(make.__name__, needs, graphs, make, single))
            return make

        return put

    return cases, case


def named(cases: list[Case]) -> Any:
    """The cases as parameters of a test."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


def require(case: Case) -> None:
    for name in case.needs:
        pytest.importorskip(name)


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors(list(vars(value).values()))


def outcome(model: nn.Module, called: nn.Module, call: Call) -> list[Tensor | None]:
    """Results, gradients of the parameters, and buffers, after one forward and backward."""
    seed(11)
    results = list(tensors(call(called)))
    losses = [each.square().mean() for each in results if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*results, *gradients, *model.buffers()]


def compare(found: list[Tensor | None], wanted: list[Tensor | None], tolerance: float) -> None:
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        if want is None or got is None:
            assert got is want
            continue
        assert got.dtype == want.dtype and got.shape == want.shape
        size = want.abs().max().item() if want.numel() and want.dtype.is_floating_point else 1.0
        torch.testing.assert_close(
            got.detach(), want.detach(), rtol=tolerance, atol=tolerance * max(size, 1e-3),
            equal_nan=True)


def check_model(case: Case, backend: str) -> None:
    """The model of a case as eager computes it, in no more graphs than the case says; on a backend
    that rounds otherwise, in float64."""
    require(case)
    dynamo.reset()
    doubled = backend != "eager" and not case.single
    tolerance = 1e-5 if backend == "eager" else 1e-4 if doubled else 1e-3
    with default_dtype(torch.float64 if doubled else torch.float32):
        _check_model(case, backend, tolerance)


def _check_model(case: Case, backend: str, tolerance: float) -> None:
    seed(0)
    model, call = case.make()
    plain = copy.deepcopy(model)
    wanted = outcome(plain, plain, call)
    counter = CompileCounter()
    compiled = dynamo.compile(model, backend=counter if backend == "eager" else backend)
    compare(outcome(model, compiled, call), wanted, tolerance)
    if backend == "eager":
        assert counter.frame_count <= case.graphs
    assert_compiled()
    assert not dynamo.counters["internal_errors"]


def check_program(case: Case) -> None:
    """What a program gives back with the compiler, which it gets as an argument."""
    require(case)
    dynamo.reset()
    counter = CompileCounter()
    found = []
    for compiler in (lambda model: model, lambda model: dynamo.compile(model, backend=counter)):
        seed(0)
        found.append(list(tensors(case.make(compiler))))
    compare(found[1], found[0], 1e-5)
    assert 0 < counter.frame_count <= case.graphs
    assert not dynamo.counters["internal_errors"]
