"""The public functions: what they accept, what they keep, what they say."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import sys
import warnings
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.recursion import recursion_room
from dynamo.testing import CompileCounter
from tests.common import told


def f(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Doubles."""
    return x * k


def test_functions_keep_their_face() -> None:
    compiled = dynamo.compile(f, backend="eager")
    assert compiled.__name__ == "f" and compiled.__doc__ == "Doubles." and compiled.__wrapped__ is f
    assert inspect.signature(compiled) == inspect.signature(f)
    assert compiled(torch.ones(2)).eq(2).all()


def test_decorator_forms() -> None:
    @dynamo.compile(backend="eager")
    def g(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    class C:
        @dynamo.compile(backend="eager")
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x + 2

    assert g(torch.zeros(1)).item() == 1 and C().method(torch.zeros(1)).item() == 2


@pytest.mark.parametrize("arguments,error,words", [
    (dict(backend="nosuch"), dynamo.exc.InvalidBackend, "eager"),
    (dict(backend=3), TypeError, "callable"),
    (dict(mode="fast"), ValueError, "max-autotune"),
    (dict(mode="default", options={"a": 1}), ValueError, "exclude"),
    (dict(options=3), TypeError, "dict"),
    (dict(fullgraph=1), TypeError, "True or False"),
    (dict(dynamic="yes"), TypeError, "None"),
    (dict(name=3), TypeError, "text"),
])
def test_bad_arguments(arguments: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        dynamo.compile(f, **arguments)


def test_arguments_of_torchs_compile() -> None:
    compiled = dynamo.compile(f, backend=None, name="part", isolate_recompiles=False)
    assert compiled(torch.ones(2)).eq(2).all()


def test_not_callable() -> None:
    with pytest.raises(TypeError, match="callable|function"):
        dynamo.compile(3)


def test_fullgraph_error_names_line_reason_and_hint() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # the line
            return x
        return -x

    with pytest.raises(dynamo.exc.Unsupported) as info:
        dynamo.compile(g, backend="eager", fullgraph=True)(torch.ones(2))
    text = str(info.value)
    assert "test_api.py" in text and "if x.sum() > 0:  # the line" in text
    assert "torch.where" in text and "fullgraph=True" in text


def test_module_stays_itself() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    compiled = dynamo.compile(module, backend="eager")
    assert isinstance(compiled, torch.nn.Sequential)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), module.parameters(), strict=True))
    compiled.eval()
    assert not module.training
    module.note = 5
    assert compiled.note == 5
    x = torch.ones(2, 3)
    assert torch.equal(compiled(x), module(x))
    seen = []
    module.register_forward_hook(lambda m, a, out: seen.append(1))
    compiled(x)
    assert seen == [1]
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(dynamo.compile(torch.nn.Linear(3, 3), backend="eager")))):
        assert type(other) in (torch.nn.Sequential, torch.nn.Linear)


def test_in_place() -> None:
    module = torch.nn.Linear(3, 3)
    counter = dynamo.testing.CompileCounter()
    assert dynamo.compile_in_place(module, backend=counter) is module
    assert type(module) is torch.nn.Linear and list(module.state_dict()) == ["weight", "bias"]
    module(torch.ones(2, 3))
    assert counter.frame_count == 1
    with pytest.raises(TypeError, match="nn.Module"):
        dynamo.compile_in_place(f)


def test_disable_and_reset() -> None:
    counter = dynamo.testing.CompileCounter()
    inner = dynamo.disable(lambda x: x * 3)
    g = dynamo.compile(lambda x: inner(x + 1) + 1, backend=counter)
    assert g(torch.ones(1)).item() == 7 and counter.frame_count == 2
    dynamo.reset()
    g(torch.ones(1))
    assert counter.frame_count == 4


def test_explain_shows_ten_lines_of_guards() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break()
        x = x + 1
        dynamo.graph_break()
        x = x.relu()
        dynamo.graph_break()
        return x

    report = dynamo.explain(g)(torch.ones(3))
    text = str(report)
    assert len(report.guards) > 1 and len(report.costs) == 3 == text.count("Graph break:")
    shown, last = text.split(f"  guards of {next(iter(report.guards))}:\n")[1].rsplit("\n", 1)
    lines = [line.strip() for line in shown.splitlines() if "guards of" not in line]
    assert len(lines) == 10 and all(line in report.all_guards for line in lines)
    assert last.strip() == f"and {len(report.out_guards) - 10} lines more: print(explained.all_guards)"


def test_explain() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        dynamo.graph_break()
        return x * 2

    report = dynamo.explain(g)(torch.ones(2))
    assert report.graph_count == 2 and report.op_count == 2
    assert list(report.breaks) == ["explicit_break"] and "convert" in str(report)
    first, behind = report.guards
    assert first.startswith("test_explain.<locals>.g [") and behind.startswith("g from line ")


def test_a_break_says_what_its_caller_said() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break("the cache is touched")
        return x * 2

    assert "called: the cache is touched" in str(dynamo.explain(g)(torch.ones(2)))


def test_explain_with_a_backend() -> None:
    used: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        used.append(module)
        return module.forward

    report = dynamo.explain(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert len(used) == report.graph_count == 1


def test_explain_tells_what_breaks_cost() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x.sum().item()  # the inner line

    def g(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        dynamo.graph_break()
        x = inner(x.sin().cos())  # the outer line
        return x * 2

    report = dynamo.explain(g)(torch.ones(2))
    assert [cost.code for cost in report.costs] == ["explicit_break", "item"]
    assert [cost.operations_before for cost in report.costs] == [1, 4]
    assert [cost.operations_after for cost in report.costs] == [4, 1]
    assert all(cost.seconds_lost >= 0 for cost in report.costs)
    outer, innermost = report.costs[1].stack
    assert outer.endswith("__resume_118_g") or "g" in outer and "inner" in innermost
    text = str(report)
    assert "# the inner line" in text and "separates 1 operation from 4" in text
    assert "What to do: Keep it a tensor" in text


def test_backend_error_has_graph_and_nothing_is_cached() -> None:
    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list) -> object:
        calls.append(1)
        raise KeyError("boom")

    g = dynamo.compile(f, backend=backend)
    for _ in range(2):
        with pytest.raises(dynamo.exc.BackendError, match="boom") as info:
            g(torch.ones(2))
        assert isinstance(info.value.graph_module, torch.fx.GraphModule)
    assert len(calls) == 2


def test_recompile_limit_warns_once_and_keeps_entries() -> None:
    counter = dynamo.testing.CompileCounter()
    g = dynamo.compile(f, backend=counter, recompile_limit=2, dynamic=False)
    x = torch.ones(2)
    with told("recompile limit.*k was"), warnings.catch_warnings():
        warnings.simplefilter("error")  # the program's warnings are its own
        for k in range(5):
            assert g(x, k).eq(k).all()
    assert counter.frame_count == 2
    g(x, 0)
    assert counter.frame_count == 2


def test_recursion_limit_is_put_back_whatever_the_order() -> None:
    before = sys.getrecursionlimit()
    first, second = recursion_room(), recursion_room()
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        second.__enter__()
        assert sys.getrecursionlimit() > before
        stack.close()
        assert sys.getrecursionlimit() > before
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(("function", "arguments"), [
    (torch.nn.functional.smooth_l1_loss, (torch.ones(3), torch.zeros(3))),
    (functools.partial(torch.nn.functional.mse_loss, reduction="sum"), (torch.ones(3), torch.zeros(3))),
    (torch.einsum, ("ij,kj->ik", torch.ones(2, 3), torch.ones(4, 3))),
    (torch.cdist, (torch.ones(2, 3), torch.zeros(4, 3))),
    (torch.tensordot, (torch.ones(2, 3), torch.ones(2, 3))),
    (torch.sin, (torch.ones(3),)),
    (torch.Tensor.sin, (torch.ones(3),)),
    (torch.ones(3).add, (torch.ones(3),)),
    (torch.ops.aten.sin, (torch.ones(3),)),
    (functools.partial(torch.add, alpha=2), (torch.ones(3), torch.ones(3))),
    (torch.nn.functional.max_pool2d, (torch.ones(1, 4, 4), 2)),
    (torch.nn.utils.clip_grad_norm_, ([torch.ones(3)], 1.0)),
    (torch.distributions.Laplace(torch.zeros(3), 1.0, validate_args=False).log_prob, (torch.ones(3),)),
], ids=["loss", "partial", "einsum", "cdist", "tensordot", "of C", "method of C", "bound method of C", "operator",
        "partial of C", "dispatched", "wrapped", "bound method"])
def test_torchs_own_functions(function: Any, arguments: tuple[Any, ...]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(function, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(*arguments), function(*arguments))
    assert counter.frame_count == 1 and dynamo.run(compiled) is function
