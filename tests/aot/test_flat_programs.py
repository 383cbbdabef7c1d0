"""Programs with wrapper subclasses at their ends, for backends that take ATen graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

import dynamo
from dynamo.aot import compile_inference, compile_training
from tests.wrapper_tensors import assert_same


def test_compilers_see_plain_tensors() -> None:
    """Forward and backward; the program's own wrappers come back."""
    seen: list[Any] = []

    def compiler(module: fx.GraphModule, fakes: list[Any]) -> Any:
        seen.extend(fakes)
        return module.forward

    def train(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_training(gm, inputs, compiler, compiler)

    def infer(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_inference(gm, inputs, compiler)

    def f(w: Any, x: torch.Tensor) -> Any:
        return (w * x).sin(), w.a + x

    w, x = TwoTensor(torch.randn(3, 4), torch.randn(3, 4)), torch.randn(3, 4)
    with torch.no_grad():
        assert_same(dynamo.compile(f, backend=infer)(w, x), f(w, x))
    mine, other = copy.deepcopy(w).requires_grad_(), copy.deepcopy(w).requires_grad_()
    compiled = dynamo.compile(f, backend=train)
    for leaf, call in ((mine, compiled), (other, f)):
        call(leaf, x)[0].sum().backward()
    assert_same(mine.grad, other.grad)
    assert not any(isinstance(fake, TwoTensor) for fake in seen)
