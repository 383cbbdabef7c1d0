"""Runs a program `def f(x, y)` eagerly and compiled, with gradients, and compares what is left.

Compared: the result, the gradients of `x` and of every tensor and parameter of the program's
scope, those tensors and buffers themselves, exceptions, printed text, modes and random state.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import dynamo
from dynamo.backends.registry import lookup_backend
from tests.features.harness import build, facts_of, same, table

CALLS = 2

# What the programs of the tables have in their scope.
COMMON = """
import functools
import numpy as np
import torch.nn as nn, torch.nn.functional as F
from torch.autograd import Function
w = torch.rand(3, requires_grad=True)
log = []
table = np.arange(3, dtype=np.float32)
lin = nn.Linear(3, 3)
def scale(g): return g * 5
def scale_by(g, k): return g * k
hooked_leaf = torch.rand(3, requires_grad=True)
hooked_leaf.register_hook(lambda g: g * 3)
accumulated = torch.rand(3, requires_grad=True)
accumulated.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().item()))
with_backward_hook = nn.Linear(3, 3)
with_backward_hook.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
with_backward_pre_hook = nn.Linear(3, 3)
with_backward_pre_hook.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
"""

FUNCTIONS = """
class Cube(Function):
    generate_vmap_rule = False
    @staticmethod
    def forward(ctx, a): ctx.save_for_backward(a); return a ** 3
    @staticmethod
    def backward(ctx, g): a, = ctx.saved_tensors; return g * 3 * a * a
class Vmappable(Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(a): return a ** 3
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, g): a, = ctx.saved_tensors; return g * 3 * a * a
"""


def flat_state(scope: dict[str, Any]) -> dict[str, Any]:
    """The tensors that the program's globals hold, with their gradients."""
    found: dict[str, Any] = {}
    for name, value in scope.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, torch.nn.Module):
            found.update({f"{name}.{key}": p for key, p in value.named_parameters()})
            found.update({f"{name}.{key}": b for key, b in value.named_buffers()})
        elif isinstance(value, list):
            found[name] = value
    out: dict[str, Any] = {}
    for key, value in found.items():
        out[key] = copied(value)
        if isinstance(value, torch.Tensor) and value.is_leaf:
            out[f"{key}.grad"] = copied(value.grad)
    return out


def copied(value: Any) -> Any:
    """What can be compared later: plain tensors, with what they were."""
    if isinstance(value, torch.Tensor) and not is_plain(value):
        with torch._C.DisableTorchFunctionSubclass():
            kind = type(value).__name__, value.layout, value.requires_grad, value.dtype
            if type(value).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
                return kind
            plain = value.dequantize() if value.is_quantized else value.to_dense()
            return kind, plain.as_subclass(torch.Tensor).detach().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def is_plain(value: torch.Tensor) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
        and not value.is_quantized and not value.is_nested and not value.is_meta
    )


def differentiable(result: Any) -> list[torch.Tensor]:
    return [
        leaf for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
        and not leaf.is_meta
    ]


def observe(f: Any, scope: dict[str, Any], call: int) -> Any:
    """Everything one call leaves behind."""
    generator = torch.Generator().manual_seed(call)
    x = torch.rand(2, 3, generator=generator).requires_grad_()
    y = torch.rand(2, 3, generator=generator)
    torch.default_generator.manual_seed(call)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = f(x, y)
        except Exception as error:
            result = error
        first = copied(result) if not isinstance(result, Exception) else facts_of(result)
        mode = torch.is_grad_enabled(), torch.get_default_dtype()
        drawn = torch.rand(2)
        losses = differentiable(result)
        failure = None
        if losses and not isinstance(result, Exception):
            try:
                torch.autograd.backward([(t * (i + 1)).sum() for i, t in enumerate(losses)])
            except Exception as error:
                failure = facts_of(error)
    return first, x.detach().clone(), x.grad, y, mode, drawn, failure, out.getvalue(), flat_state(scope)


def close(a: Any, b: Any) -> bool:
    """`same` up to rounding."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.layout != torch.strided or not (a.is_floating_point() or a.is_complex()):
            return same(a, b)
        return (
            type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
            and a.requires_grad == b.requires_grad
            and torch.allclose(a, b, rtol=2e-2 if a.element_size() < 4 else 1e-4, atol=1e-5, equal_nan=True)
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return close([*a.items()], [*b.items()])
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-4 * abs(a) + 1e-5
    return same(a, b)


PARTS = ("result", "x", "gradient of x", "y", "modes", "random state", "error of backward",
         "printed", "state")


def check_program(
    text: str, setup: str, graphs: int | None = None, backend: str = "eager"
) -> None:
    """graphs: how many graphs all calls may make together."""
    dynamo.reset()
    seen: list[torch.fx.GraphModule] = []
    inner = lookup_backend(backend)

    def counting(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        module.graph.lint()
        seen.append(module)
        return inner(module, inputs)

    scopes = []
    for _ in range(2):
        torch.default_generator.manual_seed(0)
        scopes.append(build(text, setup))
    eager, traced = scopes
    compiled = dynamo.compile(traced["f"], backend=counting)
    equal = same if backend == "eager" else close
    with dynamo.config.patch(suppress_errors=False):
        for call in range(CALLS):
            want = observe(eager["f"], eager, call)
            got = observe(compiled, traced, call)
            for name, a, b in zip(PARTS, want, got, strict=True):
                assert equal(a, b), f"{name} of call {call}\neager    {a}\ncompiled {b}"
    assert graphs is None or len(seen) <= graphs, f"{len(seen)} graphs, not {graphs}"


def rows_of(text: str) -> dict[str, tuple[str, int]]:
    """Programs of a table by name: blocks headed by `# name | number of graphs`."""
    rows = {}
    for head, body in table(text):
        name, _, graphs = head.partition(" | ")
        rows[name] = (body, int(graphs))
    return rows


def make_tests(
    rows: dict[str, tuple[str, int]], setup: str, compiled: list[str]
) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """The tests of a table: every row captured, the rows named in `compiled` on the default backend too."""

    @pytest.mark.parametrize("name", rows)
    def test_captured(name: str) -> None:
        text, graphs = rows[name]
        check_program(text, setup, graphs)

    @pytest.mark.parametrize("name", compiled)
    def test_compiled(name: str) -> None:
        check_program(rows[name][0], setup, backend="inductor")

    return test_captured, test_compiled
