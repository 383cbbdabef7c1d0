"""What programs say to torch's own compiler holds here, too: its decorators and its marks."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # the program's imports: users mix both compilers

import dynamo

COUNTED: list[torch.fx.GraphModule] = []


def counting(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    COUNTED.append(module)
    return module.forward


@pytest.fixture(autouse=True)
def fresh() -> Any:
    dynamo.reset()
    COUNTED.clear()
    with dynamo.config.patch(suppress_errors=False):
        yield
    torch._dynamo.reset()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.compiler.disable
def excluded(x: torch.Tensor) -> torch.Tensor:
    assert not torch.compiler.is_compiling()
    return doubled(x)


@torch.compiler.disable(recursive=False)
def excluded_alone(x: torch.Tensor) -> torch.Tensor:
    return doubled(x) + 1


@torch.compile(backend="eager")
def compiled_by_torch(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Part(torch.nn.Module):
    @torch.compiler.disable(reason="it prints")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


ROWS: list[tuple[Any, int, int]] = [  # the function, graphs, operations in them
    (excluded, 2, 2), (excluded_alone, 3, 3), (Part(), 2, 2), (compiled_by_torch, 1, 3),
    (lambda x: (torch._dynamo.graph_break(), x * 2)[1], 3, 3),
]


@pytest.mark.parametrize("row", ROWS, ids=("disable", "disable alone", "method", "compile", "break"))
def test_decorators(row: tuple[Any, int, int]) -> None:
    inner, graphs, operations = row

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) - 1

    compiled = dynamo.compile(f, backend=counting)
    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x), f(x))
    assert len(COUNTED) == graphs
    assert sum(node.op.startswith("call_") for module in COUNTED for node in module.graph.nodes) == operations


def test_a_module_compiled_by_torch() -> None:
    part = torch.compile(torch.nn.Linear(3, 3), backend="eager")

    def f(x: torch.Tensor) -> torch.Tensor:
        return part(x + 1) - 1

    x = torch.randn(2, 3)
    compiled = dynamo.compile(f, backend=counting)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))


def test_the_reason_is_shown() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Part.forward(None, x) + 1  # type: ignore[arg-type]

    with pytest.raises(dynamo.exc.Unsupported, match="it prints"):
        dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("mark, graphs", [
    (torch._dynamo.mark_dynamic, 1), (torch._dynamo.maybe_mark_dynamic, 1), (torch._dynamo.decorators.mark_unbacked, 1),
    (lambda x, axis: torch._dynamo.mark_dynamic(x, axis, min=2, max=8), 1),
    (torch._dynamo.mark_static, 3), (lambda x, axis: None, 2)])
def test_marks_of_dimensions(mark: Any, graphs: int) -> None:
    compiled = dynamo.compile(lambda x: x * 2, backend=counting)
    for size in (4, 5, 6):
        x = torch.randn(size, 3)
        mark(x, 0)
        assert torch.equal(compiled(x), x * 2)
    assert len(COUNTED) == graphs


CALLS: list[int] = []


@torch.compiler.allow_in_graph
def allowed(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)  # done for fakes, too: the body is not looked at
    return x * 2


def test_what_torch_is_allowed_to_take_as_one_node() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return allowed(x + 1) - 1

    compiled = dynamo.compile(f, backend=counting, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), f(x))
    (module,) = COUNTED
    assert [node.target for node in module.graph.nodes if node.op == "call_function"][1] is allowed

    dynamo.disallow_in_graph(allowed)
    dynamo.reset()
    COUNTED.clear()
    assert torch.equal(dynamo.compile(f, backend=counting)(x), f(x))
    assert all(node.target is not allowed for module in COUNTED for node in module.graph.nodes)


def tells(x: torch.Tensor) -> torch.Tensor:
    return x * (3 if torch.compiler.is_compiling() else 2)


def roots() -> dict[str, tuple[Any, int]]:
    """What torch made of a function or module, and how many graphs compiling that makes."""
    def own() -> Any:  # a skipped function stays skipped
        return types.FunctionType(tells.__code__.replace(), globals())

    linear = torch.nn.Linear(3, 3)
    return {
        "compile": (torch.compile(own(), backend="eager"), 1),
        "compile twice": (torch.compile(torch.compile(own(), backend="eager"), backend="eager"), 1),
        "optimize": (torch._dynamo.optimize("eager")(own()), 1),
        "region": (torch.compiler.nested_compile_region(own()), 1),
        "disable": (torch.compiler.disable(own()), 0),
        "disable alone": (torch.compiler.disable(own(), recursive=False), 0),
        "module": (torch.compile(linear, backend="eager"), 1),
        "disabled module": (torch.compiler.disable(linear), 0),
        "only copied": (functools.wraps(torch.compile(own(), backend="eager"))(lambda x: x * 7), 1),
    }


@pytest.mark.parametrize("name", roots())
def test_what_torch_made_is_compiled_as_what_it_was_made_of(name: str) -> None:
    made, graphs = roots()[name]
    x = torch.randn(2, 3)
    if isinstance(made, torch.nn.Module):
        expected = made(x)
    else:
        expected = x * (7 if name == "only copied" else 3 if graphs else 2)
    compiled = dynamo.compile(made, backend=counting)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), expected)
    assert len(COUNTED) == graphs
    if name == "module":
        assert type(compiled) is not type(made) and list(compiled.state_dict()) == ["weight", "bias"]
