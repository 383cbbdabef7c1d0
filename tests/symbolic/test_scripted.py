"""Functions that TorchScript has compiled."""

from __future__ import annotations

import pytest
import torch

import dynamo


@torch.jit.script
def scripted(x, factor: int):
    return x * factor + torch.sqrt(torch.tensor(x.size(-1) * factor, dtype=torch.float))


def test_a_scripted_function_is_traced_as_the_function_it_was_made_of():
    def f(x, factor):
        return scripted(x, factor) + scripted(x, factor=2)

    x = torch.randn(3)
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, 3), f(x, 3))
    assert torch.equal(compiled(x, 4), f(x, 4))


def test_another_scripted_function_in_its_place_is_seen(monkeypatch):
    @torch.jit.script
    def other(x, factor: int):
        return x - factor

    def f(x):
        return scripted(x, 3)

    x = torch.randn(3)
    compiled = dynamo.compile(f, backend="eager")
    assert torch.equal(compiled(x), f(x))
    monkeypatch.setitem(globals(), "scripted", other)
    assert torch.equal(compiled(x), x - 3)


@torch.jit.script
def refuses(x, limit: float):
    if limit > 1.0:
        raise ValueError("too much")
    return x * limit


def test_what_torchscript_converts_or_raises_is_left_to_it():
    def f(x, limit):
        try:
            return refuses(x, limit)
        except Exception as error:
            return type(error)

    x = torch.arange(3)
    compiled = dynamo.compile(f, backend="eager")
    for limit in (0.5, 1, 2.0, "no"):
        expected, got = f(x, limit), compiled(x, limit)
        if isinstance(expected, torch.Tensor):
            assert torch.equal(got, expected) and got.dtype is expected.dtype
        else:
            assert got is expected


@torch.jit.script
def scaled(x, scale: float = 1.0, shift: torch.Tensor | None = None, most: float | None = None):
    x = x * scale
    if shift is not None:
        x = x + shift
    return x if most is None else x.clamp(max=most)


def test_an_integer_for_a_float_is_one_and_optional_arguments_may_be_missing():
    def f(x):
        return scaled(x, 2), scaled(x, -1, x), scaled(x, most=3, shift=None), scaled(x, 2.5, x, 3.5)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for x in (torch.arange(3), torch.randn(3)):
        for got, expected in zip(compiled(x), f(x), strict=True):
            assert torch.equal(got, expected) and got.dtype is expected.dtype


KINDS = {
    "a class": str, "classes": (str, int), "a tensor": torch.Tensor, "a list": list[int],
    "a dict": dict[str, int], "a tuple": tuple[int, str],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_isinstance_of_torchscript_is_answered_while_tracing(kind):
    def f(x, value):
        return x + 1 if torch.jit.isinstance(value, KINDS[kind]) else x * 3

    x = torch.ones(2)
    for value in ("a", 3, [3], ["a"], {"a": 1}, {1: 2}, (1, "a"), (1,), None, x):
        dynamo.reset()
        compiled = dynamo.compile(f, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, value), f(x, value))
