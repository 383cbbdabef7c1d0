"""Gradients, within a compiled function, by tensors that it makes leaves itself: one compiled part,
second derivatives included, as force fields and gradient penalties want them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamo
from dynamo.testing import assert_compiled

BACKENDS = ["aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def errors_are_shown() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield


def perceptron() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    return net.double()


def forces_trained(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    places = x.detach().requires_grad_()
    energy = net(places).sum()
    (slope,) = torch.autograd.grad(energy, places, create_graph=True)
    return energy**2 + (slope + y).square().mean()


def forces(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    places = x.detach().requires_grad_()
    energy = net(places).sum()
    return -torch.autograd.grad(energy, places)[0]


def forces_and_energy(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    places = x.detach().requires_grad_()
    energy = net(places).sum()
    (slope,) = torch.autograd.grad(energy, places, retain_graph=True)
    return energy, slope


def penalty(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    between = (0.25 * x + 0.75 * y).requires_grad_(True)
    (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean() + net(x).mean()


def leaf_returned(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    places = x.clone().detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(places).sum(), places, create_graph=True)
    return slope.square().sum(), places


def second(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    """A Hessian times a vector."""
    places = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(places).sum(), places, create_graph=True)
    (curve,) = torch.autograd.grad((slope * y).sum(), places, create_graph=True)
    return curve.square().sum() + slope.sum()


def unused(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    a, b = x.detach().requires_grad_(), y.detach().requires_grad_()
    one, other = torch.autograd.grad(net(a).sum(), (a, b), create_graph=True, allow_unused=True)
    assert other is None
    return one.square().sum()


def of_parts(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    """A cut lies between a value with a history and what is differentiated."""
    places = x.detach().requires_grad_()
    bent = (places * y).tanh()
    extra = y.detach().requires_grad_()
    energy = (net(bent) * extra).sum()
    (slope,) = torch.autograd.grad(energy, places, create_graph=True)
    return slope.square().sum()


def written(net: nn.Module, x: Tensor, y: Tensor) -> Any:
    """What the made leaf is multiplied with got its history by a write."""
    total = torch.zeros_like(x)
    total.add_(next(net.parameters())[:4] * y)
    places = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((net(places) * total).sum(), places, create_graph=True)
    return slope.square().sum()


PROGRAMS = (forces_trained, forces, forces_and_energy, penalty, leaf_returned, second, unused,
            of_parts, written)  # fmt: skip
APART = (of_parts, written)  # whose derivatives lead through two parts
Program = Callable[[nn.Module, Tensor, Tensor], Any]


def observed(net: nn.Module, program: Callable[..., Any]) -> list[Any]:
    """Results, whether they have a history, and the gradients of what backward reaches."""
    seen: list[Any] = []
    for number in range(2):
        torch.manual_seed(number)
        x, y = (torch.randn(4, 3, dtype=torch.float64) for _ in range(2))
        net.zero_grad()
        result = program(net, x, y)
        items = result if isinstance(result, tuple) else (result,)
        seen += [(item.detach().clone(), item.requires_grad, item.is_leaf) for item in items]
        if items[0].requires_grad:
            items[0].sum().backward()
        seen += [p.grad for p in net.parameters()]
        seen += [item.grad for item in items if item.is_leaf]
        seen = [item.clone() if isinstance(item, Tensor) else item for item in seen]
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_equals_eager(program: Program, backend: str) -> None:
    torch.manual_seed(3)
    net = perceptron()
    wanted = observed(net, program)
    found = observed(net, dynamo.compile(program, backend=backend, fullgraph=True))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, tuple):
            assert one[1:] == other[1:]
            one, other = one[0], other[0]
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert_compiled(but="second derivative" if program in APART else "")


@pytest.mark.parametrize("program", (forces_trained, penalty, second, forces))
def test_is_one_part(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind the leaf all is one forward graph and, where there is one, one backward."""
    net = perceptron()
    x, y = (torch.randn(4, 3, dtype=torch.float64) for _ in range(2))
    dynamo.set_logs("aot_graphs")
    try:
        result = dynamo.compile(program)(net, x, y)
        if result.requires_grad:
            result.backward()
    finally:
        dynamo.set_logs("-aot_graphs")
    graphs = capsys.readouterr().err.count("def forward")
    assert graphs == (1 if program is forces else 2) + (program is penalty)
