"""Runs a snippet `def f(x, y)` eagerly and compiled and compares; used by the feature tables."""

from __future__ import annotations

import contextlib
import io
import textwrap
import types
from collections.abc import Callable, Container
from typing import Any

import pytest
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
    torch.default_generator.manual_seed(call)  # `torch.manual_seed` keeps the stack for devices: 2 ms
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
        want = outcome(eager["f"], call)
        with dynamo.config.patch(suppress_errors=False):
            got = outcome(compiled, call)
        assert same(want, got), f"call {call}\neager    {want}\ncompiled {got}"
        if call == 0 and graphs is not None:
            # A snippet without any tensor operation makes no graph at all.
            assert len(seen) <= graphs, f"{len(seen)} graphs, not {graphs}"
        if backward:
            want[0].sum().backward()
            got[0].sum().backward()
            want_grads, got_grads = gradients(eager), gradients(traced)
            assert same(want_grads, got_grads), (want_grads, got_grads)


def codes_of(text: str, setup: str = "") -> set[str]:
    """The codes of the breaks in the first call."""
    dynamo.reset()
    outcome(dynamo.compile(build(text, setup)["f"], backend="eager"), 0)
    return {reason.partition(":")[0] for reason in dynamo.counters["graph_break"]}


def gradients(scope: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    """The gradients of the tensors and modules of a scope."""
    found = {key: value.grad for key, value in scope.items() if isinstance(value, torch.Tensor)}
    for module in scope.values():
        if isinstance(module, torch.nn.Module):
            found.update({name: parameter.grad for name, parameter in module.named_parameters()})
    return found


def table(text: str) -> list[tuple[str, str]]:
    """Snippets of a table: blocks headed by `# name`."""
    rows: list[tuple[str, str]] = []
    for block in textwrap.dedent(text).strip("\n").split("\n# "):
        name, _, body = block.removeprefix("# ").partition("\n")
        rows.append((name.strip(), body))
    return rows


def make_tests(
    one_graph: list[tuple[str, str]], any_graphs: list[tuple[str, str]], setup: str,
    broken: Container[str] = (),
) -> tuple[Callable[[str, str], None], Callable[[str, str], None]]:
    """The tests of two tables: rows that are one graph (but those named in `broken`), rows of any number."""

    @pytest.mark.parametrize("name,text", one_graph, ids=[name for name, _ in one_graph])
    def test_one_graph(name: str, text: str) -> None:
        check(text, setup, graphs=None if name in broken else 1)

    @pytest.mark.parametrize("name,text", any_graphs, ids=[name for name, _ in any_graphs])
    def test_any_graphs(name: str, text: str) -> None:
        check(text, setup, graphs=None)

    return test_one_graph, test_any_graphs
