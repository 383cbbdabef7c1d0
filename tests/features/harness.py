"""Runs a snippet `def f(x, y)` eagerly and compiled and compares; used by the feature tables."""

from __future__ import annotations

import contextlib
import copy
import io
import textwrap
import types
from typing import Any

import torch

import dynamo


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and structure; tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return (
            type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
            and a.requires_grad == b.requires_grad and torch.equal(a, b)
        )
    if type(a).__name__ == type(b).__name__ == "ndarray":
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())
    if isinstance(a, torch.nn.Module):
        return same(a.state_dict(), b.state_dict())
    if isinstance(a, BaseException):
        return same(facts_of(a), facts_of(b)) if isinstance(b, BaseException) else False
    if type(a).__name__ != type(b).__name__:
        return False
    if isinstance(a, dict):
        return same([*a.items()], [*b.items()])
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)):
        return bool(a.__name__ == b.__name__)
    if hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    if isinstance(a, (set, frozenset)) or type(a).__eq__ is not object.__eq__:
        return bool(a == b)
    return True


def facts_of(error: BaseException | None) -> Any:
    """Everything of an exception but the traceback."""
    if error is None:
        return None
    return (type(error).__name__, str(error), error.args, vars(error), error.__suppress_context__,
            facts_of(error.__cause__), facts_of(error.__context__))


def build(text: str, setup: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch, "dynamo": dynamo, "__name__": __name__}
    exec(textwrap.dedent(setup), scope)
    text = textwrap.dedent(text)
    exec(text if "def f(" in text else "def f(x, y):\n" + textwrap.indent(text, "    "), scope)
    return scope


def outcome(f: Any, call: int) -> Any:
    generator = torch.Generator().manual_seed(call)
    x, y = torch.rand(2, 3, generator=generator), torch.rand(2, 3, generator=generator)
    torch.manual_seed(call)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            result = f(x, y)
    except Exception as error:
        result = error
    return result, x, y, torch.is_grad_enabled(), out.getvalue()


def check(text: str, setup: str = "", graphs: int | None = 1, backward: bool = False) -> None:
    """graphs: how many graphs the first call makes (None: any number)."""
    dynamo.reset()
    seen: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        module.graph.lint()
        seen.append(sum(node.op.startswith("call_") for node in module.graph.nodes))
        return module.forward

    eager, traced = build(text, setup), build(text, setup)
    compiled = dynamo.compile(traced["f"], backend=backend, fullgraph=graphs == 1)
    for call in range(3):
        want, got = outcome(eager["f"], call), outcome(compiled, call)
        assert same(want, got), f"call {call}\neager    {want}\ncompiled {got}"
        if call == 0 and graphs is not None:
            # A snippet without any tensor operation makes no graph at all.
            assert len(seen) <= graphs, f"{len(seen)} graphs, not {graphs}"
        if backward:
            grads = []
            for result in (want[0], got[0]):
                result.sum().backward()
            for scope in (eager, traced):
                grads.append({k: v.grad for k, v in scope.items() if isinstance(v, torch.Tensor)})
                grads[-1].update({n: p.grad for k, m in scope.items() if isinstance(m, torch.nn.Module)
                                  for n, p in m.named_parameters()})
            assert same(*copy.copy(grads)), grads


def table(text: str) -> list[tuple[str, str]]:
    """Snippets of a table: blocks headed by `# name`."""
    rows: list[tuple[str, str]] = []
    for block in textwrap.dedent(text).strip("\n").split("\n# "):
        name, _, body = block.removeprefix("# ").partition("\n")
        rows.append((name.strip(), body))
    return rows
