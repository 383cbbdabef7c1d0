"""Products of numpy arrays that are summed over some axes.

The rows are of the same kind as in `array_functions`.
"""

from __future__ import annotations

import string
from typing import Any

import torch

from dynamo.symbolic.numpy.array_calls import Call
from dynamo.symbolic.numpy.array_functions import casted, function, need
from dynamo.symbolic.tensors.tensor import TensorVar


@function("einsum")
def einsum(call: Call, *operands: Any, optimize: Any = False) -> Any:
    """optimize: an order of the products, which the result does not depend on but for rounding."""
    if isinstance(operands[0], str):
        text, arrays = operands[0], operands[1:]
    else:
        text, arrays = equation_of(operands)
    need(call.dtype is not torch.bool, "bools, which are not added")
    # Sums of products of three, in pairs, may be infinite where numpy's are NaN.
    need(len(arrays) <= 2 or optimize is not False, "more than two arrays, not to be paired")
    text, alone = with_all_products(explicit(text))
    found = call(torch.einsum, text, *casted(call, arrays))
    return call(torch.sum, found, tuple(range(-alone, 0)), dtype=call.dtype) if alone else found


def with_all_products(text: str) -> tuple[str, int]:
    """The equation whose result has all axes that one of two arrays has alone, and how many are
    last that are still to be summed: torch sums an array over them before it multiplies it."""
    given, _, result = text.partition("->")
    parts = given.split(",")
    letters = dict.fromkeys(letter for letter in given if letter.isalpha())
    alone = [x for x in letters if x not in result and sum(x in part for part in parts) == 1]
    if len(parts) == 1 or not alone:
        return text, 0
    return f"{text}{''.join(alone)}", len(alone)


def equation_of(operands: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """`ij,jk->ik` of arrays and lists of numbers that take turns; those of the result come last."""
    pairs = len(operands) // 2
    arrays, labels = operands[: 2 * pairs : 2], operands[1 : 2 * pairs : 2]
    text = ",".join(map(letters_of, labels))
    return (f"{text}->{letters_of(operands[-1])}" if len(operands) % 2 else text), arrays


def letters_of(labels: Any) -> str:
    need(all(label is ... or type(label) is int for label in labels), "labels")
    return "".join("..." if label is ... else string.ascii_letters[label] for label in labels)


def explicit(text: str) -> str:
    """With the axes of the result; unsaid, they are those that occur once, sorted."""
    text = text.replace(" ", "")
    if "->" in text:
        return text
    letters = sorted({letter for letter in text if letter.isalpha() and text.count(letter) == 1})
    return f"{text}->{'...' * ('...' in text)}{''.join(letters)}"


@function("inner")
def inner(call: Call, x: TensorVar, y: Any) -> Any:
    return call(torch.inner, *casted(call, (x, y)))


@function("vdot")
def vdot(call: Call, x: TensorVar, y: Any) -> Any:
    flat = (call(torch.Tensor.reshape, each, (-1,)) for each in casted(call, (x, y)))
    return call(torch.dot, *flat)


@function("tensordot")
def tensordot(call: Call, x: TensorVar, y: Any, axes: Any = 2) -> Any:
    if not isinstance(axes, int):
        axes = [[axis] if isinstance(axis, int) else list(axis) for axis in axes]
    return call(torch.tensordot, *casted(call, (x, y)), dims=axes)


@function("kron")
def kron(call: Call, x: TensorVar, y: Any) -> Any:
    return call(torch.kron, *casted(call, (x, y)))
