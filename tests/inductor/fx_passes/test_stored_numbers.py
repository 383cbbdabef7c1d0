"""Packed numbers are named by where they lie: orders that are counted out, bytes with a sign."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from dynamo.aot.graphs import LITERAL
from inductor.fx_passes.stored_numbers import name_stored_numbers

aten = torch.ops.aten
AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def picked(order, dtype=torch.int64):
    def program(x):
        index = torch.arange(x.shape[-1], device=x.device, dtype=dtype).view(-1, len(order))[:, order].view(-1)
        return x[:, index] * 2, x[:, index][:, index]

    return program


def passed(program, *given):
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in given]
    module = make_fx(program, tracing_mode="fake", _allow_non_fake_inputs=True)(*fakes)
    for node in module.graph.find_nodes(op="get_attr"):  # as our own graphs name what a program writes down
        setattr(module, f"{LITERAL}{node.name}", getattr(module, node.target))
        node.target = f"{LITERAL}{node.name}"
    return name_stored_numbers(module)


def lookups(module) -> int:
    return len(module.graph.find_nodes(op="call_function", target=aten.index.Tensor))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("order", [AWQ, [0, 2, 4, 6, 1, 3, 5, 7], [0, 2, 1, 3], [0, 3, 1, 4, 2, 5]])
def test_turned_axes(order, dtype) -> None:
    program, x = picked(order, dtype), torch.randint(-99, 99, (5, 96))
    module = passed(program, x)
    assert not lookups(module)
    for found, expected in zip(module(x), program(x), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    for found, expected in zip(dynamo.compile(program)(x), program(x), strict=True):
        assert torch.equal(found, expected)


def test_an_order_that_is_copied() -> None:
    """As one is on its way to a GPU."""
    def program(x):
        return x[:, torch.arange(64).view(-1, 8)[:, torch.tensor(AWQ).clone().to(torch.int32)].flatten().long()]

    x = torch.randn(3, 64)
    module = passed(program, x)
    assert not lookups(module) and torch.equal(module(x), program(x))


@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 3, 2], [0, 0, 1, 1], [0, -1, 1, 2], [1, 0]])
def test_other_orders_are_looked_up(order) -> None:
    program, x = picked(order), torch.randint(-99, 99, (5, 64))
    module = passed(program, x)
    assert lookups(module)
    for found, expected in zip(module(x), program(x), strict=True):
        assert torch.equal(found, expected)


def test_rows_and_what_does_not_lie_densely() -> None:
    def rows(x):
        return x[torch.arange(16).view(-1, 8)[:, AWQ].flatten()], x.t()[:, torch.arange(16).view(-1, 8)[:, AWQ].flatten()]

    x = torch.randn(16, 6)
    module = passed(rows, x)
    assert lookups(module) == 1
    for found, expected in zip(module(x), rows(x), strict=True):
        assert torch.equal(found, expected)


def test_a_part_of_an_order() -> None:
    """What is picked has other sizes."""
    def program(x):
        return x[:, torch.arange(16).view(-1, 8)[:, AWQ[:4]].flatten()]

    x = torch.randn(3, 16)
    module = passed(program, x)
    assert lookups(module) and torch.equal(module(x), program(x))


def signed(q):
    return (q << 4).view(torch.int8) >> 4, q.view(torch.int8).view(-1) >> 4


def views(module) -> int:
    return len(module.graph.find_nodes(op="call_function", target=aten.view.dtype))


def test_bytes_with_a_sign() -> None:
    q = torch.randint(0, 256, (4, 8), dtype=torch.uint8)
    module = passed(signed, q)
    assert not views(module)
    for found, expected in zip((*module(q), *dynamo.compile(signed)(q)), signed(q) * 2, strict=True):
        assert torch.equal(found, expected) and found.dtype is expected.dtype


def test_bytes_that_others_see_are_a_view() -> None:
    q = torch.randint(0, 256, (4, 8), dtype=torch.uint8)
    for program in (lambda q: q.view(torch.int8), lambda q: q.view(torch.int8)[1:], lambda q: (q + 1).view(torch.int8).t()):
        module = passed(program, q)
        assert views(module) == 1 and torch.equal(module(q), program(q))
    assert dynamo.compile(lambda q: q.view(torch.int8)[1:])(q).data_ptr() == q[1:].data_ptr()


def test_bytes_that_are_written() -> None:
    def program(q):
        s = q.view(torch.int8)
        t = s >> 1
        s.neg_()
        return t, s >> 2, q + 1

    q = torch.randint(0, 256, (40,), dtype=torch.uint8)
    given, other = q.clone(), q.clone()
    for found, expected in zip(dynamo.compile(program)(given), program(other), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(given, other)
