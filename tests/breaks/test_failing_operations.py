"""Operations that fail by the values in their tensors: the error comes though nobody wants the
result, and handlers see the state that eager leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from dynamo.shapes.observable import draws, may_fail
from dynamo.testing import CompileCounter
from tests.parametrize import rotated

T = torch.tensor
Operation = Callable[[Any, Any], Any]
SINGULAR = (2 * torch.eye(3), torch.zeros(3, 3))
FINITE = (2 * torch.eye(3), torch.full((3, 3), float("nan")))
INDICES = (T([0, 1]), T([0, 9]))
CHANCES = (T([0.1, 0.2]), T([0.1, 3.0]))
MEANS = (T([0.1, 0.2]), T([-0.1, 3.0]))
DIVISORS = (T([1, 2]), T([0, 1]))

# By name: an operation on x (4, 3) and y, and values of y for which it works and fails.
FAILING: dict[str, tuple[Operation, tuple[Any, Any]]] = {
    "getitem": (lambda x, y: x[y], INDICES),
    "getitem of a number": (lambda x, y: x[y], (T(1), T(9))),
    "index_select": (lambda x, y: x.index_select(0, y), INDICES),
    "index_select of columns": (lambda x, y: x.index_select(1, y), INDICES),
    "gather": (lambda x, y: x.gather(0, y[None]), INDICES),
    "take": (lambda x, y: x.take(y), (T([0, 1]), T([0, 99]))),
    "put": (lambda x, y: x.put(y, torch.ones(2)), (T([0, 1]), T([0, 99]))),
    "scatter": (lambda x, y: x.scatter(0, y[None], 1.0), INDICES),
    "scatter_add": (lambda x, y: x.scatter_add(0, y[None], torch.ones(1, 2)), INDICES),
    "index_add": (lambda x, y: x.index_add(0, y, torch.ones(2, 3)), INDICES),
    "index_copy": (lambda x, y: x.index_copy(0, y, torch.ones(2, 3)), INDICES),
    "index_fill": (lambda x, y: x.index_fill(0, y, 2.0), INDICES),
    "index_put": (lambda x, y: x.index_put((y,), T(1.0)), INDICES),
    "embedding": (lambda x, y: F.embedding(y, x), INDICES),
    "embedding_bag": (lambda x, y: F.embedding_bag(y[None], x), INDICES),
    "one_hot": (lambda x, y: F.one_hot(y, 5), INDICES),
    "one_hot of negatives": (lambda x, y: F.one_hot(y, 5), (T([0, 1]), T([0, -1]))),
    "cross_entropy": (lambda x, y: F.cross_entropy(x[:2], y), INDICES),
    "multi_margin_loss": (lambda x, y: F.multi_margin_loss(x[:2], y), INDICES),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(y, torch.zeros(2)), CHANCES),
    "binary_cross_entropy of nan": (
        lambda x, y: F.binary_cross_entropy(y, torch.zeros(2)),
        (T([0.1, 0.2]), T([0.1, float("nan")])),
    ),
    "floordiv": (lambda x, y: T([4, 5]) // y, DIVISORS),
    "remainder": (lambda x, y: 4 % y, DIVISORS),
    "fmod": (lambda x, y: T([4, 5]).fmod(y), DIVISORS),
    "div": (lambda x, y: torch.div(T([4, 5]), y, rounding_mode="trunc"), DIVISORS),
    "inv": (lambda x, y: torch.linalg.inv(y), SINGULAR),
    "inv_ex": (lambda x, y: torch.linalg.inv_ex(y, check_errors=True)[0], SINGULAR),
    "cholesky": (lambda x, y: torch.linalg.cholesky(y), SINGULAR),
    "cholesky_ex": (lambda x, y: torch.linalg.cholesky_ex(y, check_errors=True)[0], SINGULAR),
    "solve": (lambda x, y: torch.linalg.solve(y, torch.ones(3)), SINGULAR),
    "svd": (lambda x, y: torch.linalg.svd(y)[1], FINITE),
    "pinv": (lambda x, y: torch.linalg.pinv(y), FINITE),
    "matrix_norm": (lambda x, y: torch.linalg.matrix_norm(y, 2), FINITE),
    "bernoulli": (lambda x, y: torch.bernoulli(y), CHANCES),
    "multinomial": (lambda x, y: torch.multinomial(y, 1), MEANS),
    "poisson": (lambda x, y: torch.poisson(y), MEANS),
    "normal": (lambda x, y: torch.normal(0.0, y), MEANS),
    "quantile": (lambda x, y: x.quantile(y), CHANCES),
    "histc": (lambda x, y: torch.histc(y, 4), (T([0.1, 0.2]), T([0.1, float("inf")]))),
    "masked_scatter": (
        lambda x, y: x.masked_scatter(y > 0, torch.ones(2)), (torch.zeros(4, 3), torch.ones(4, 3))),
    "max_unpool": (
        lambda x, y: F.max_unpool1d(torch.ones(1, 1, 2), y[None, None], 2),
        (T([0, 2]), T([0, 99])),
    ),
}  # fmt: skip


class Manager:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append("enter")

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        self.log.append(kind)
        return True


def unused(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        action(x, y)
        return x * 2

    return f


def unused_in_try(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        z = x * 3
        try:
            log.append(1)
            action(x, y)
            log.append(2)
        except Exception as error:
            return z - 5, type(error)
        finally:
            log.append(3)
        return z + 7

    return f


def behind_a_write(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        x.add_(1)
        found = None
        try:
            found = action(x, y)
        except Exception as error:
            log.append(type(error))
        return x * 2, found

    return f


def before_a_write(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        found = None
        try:
            found = action(x, y)
        except Exception as error:
            log.append(type(error))
        x.add_(1)
        return x * 2, found

    return f


def behind_a_draw(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        x = x + torch.rand(3)
        found = None
        try:
            found = action(x * 1, y)
            log.append(torch.rand(2))
        except Exception as error:
            log.append(type(error))
        return x * 2, found, torch.rand(2)

    return f


def again_and_again(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        for number in range(3):
            try:
                x.mul_(2)
                log.append(number)
                action(x, y)
                break
            except Exception as error:
                log.append(type(error))
        return x * 2

    return f


def swallowed(action: Operation) -> Any:
    def f(x: Any, y: Any, log: list[Any]) -> Any:
        found = x + torch.rand(3)
        with Manager(log):
            x.add_(1)
            log.append(1)
            found = action(x * 1, y)
            log.append(2)
        return found

    return f


def caught_by_the_caller(action: Operation) -> Any:
    def g(x: Any, y: Any) -> Any:
        x.add_(1)
        return action(x, y)

    def f(x: Any, y: Any, log: list[Any]) -> Any:
        try:
            return g(x, y)
        except Exception as error:
            log.append(type(error))
        finally:
            x.mul_(3)
        return x + 1

    return f


PROGRAMS = (unused, unused_in_try, behind_a_write, before_a_write, behind_a_draw, again_and_again,
            swallowed, caught_by_the_caller)  # fmt: skip
DRAWN = ("bernoulli", "multinomial", "poisson", "normal")


def outcome(f: Any, y: Any) -> Any:
    """What a call gives or raises, and all that it leaves behind."""
    x, log = torch.arange(12.0).view(4, 3) + 1, list[Any]()
    torch.manual_seed(3)
    try:
        result = f(x, y.clone(), log)
    except Exception as error:
        return type(error), log
    return result, log, x, torch.rand(2)


def agree(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
    elif isinstance(expected, tuple | list):
        assert len(got) == len(expected), (got, expected)
        for a, b in zip(got, expected, strict=True):
            agree(a, b)
    else:
        assert got == expected


def compare(program: Any, name: str, backend: str, **options: Any) -> None:
    action, (good, bad) = FAILING[name]
    dynamo.reset()
    f = program(action)
    compiled = dynamo.compile(program(action), backend=backend, **options)
    for y in (good, bad, good, bad):
        agree(outcome(compiled, y), outcome(f, y))


@rotated("name, program", FAILING, PROGRAMS, ids=lambda value: getattr(value, "__name__", None))
def test_error_by_values(name: str, program: Any) -> None:
    compare(program, name, "eager")


# The parts of a loss raise another error in aot_eager.
@rotated("name, backend", [name for name in FAILING if name not in (*DRAWN, "cross_entropy")],
         ("inductor", "aot_eager"))
def test_generated_code_raises(name: str, backend: str) -> None:
    for program in (unused, behind_a_write):
        compare(program, name, backend)


@pytest.mark.parametrize("name", ("getitem", "gather", "embedding", "floordiv", "cross_entropy"))
def test_sizes_that_vary(name: str) -> None:
    for backend in ("eager", "inductor"):
        compare(unused, name, backend, dynamic=True)


@pytest.mark.parametrize("backend", ("eager", "inductor"))
def test_a_failing_forward_whose_result_needs_a_gradient(backend: str) -> None:
    def f(x: Any, i: Any) -> Any:
        x[i] * 2
        F.nll_loss(x, i)
        return (x * 2).sum()

    compiled = dynamo.compile(f, backend=backend)
    x = torch.ones(2, 3, requires_grad=True)
    compiled(x, T([0, 1])).backward()
    assert x.grad is not None and x.grad.tolist() == [[2.0] * 3] * 2
    with pytest.raises(IndexError):
        compiled(x, T([0, 2]))


def test_what_cannot_fail_is_not_run() -> None:
    graphs = []

    def keep(module: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module

    def f(x: Any, i: Any) -> Any:
        x.sin() @ x.T
        i // 2, x // i, x % 0, torch.linalg.inv_ex(x[:3])  # noqa: B018
        F.scaled_dot_product_attention(x[None], x[None], x[None])
        return x * 2

    dynamo.compile(f, backend=keep)(torch.ones(4, 3), T([1, 2, 3]))
    [[*_, last, _]] = graphs
    assert len(graphs[0]) == 3 and "mul" in last


def test_a_generator_moves_though_nobody_wants_the_numbers() -> None:
    def f(x: Any) -> Any:
        torch.binomial(torch.full((3,), 5.0), x)
        torch._standard_gamma(x)
        return x * 2

    compiled = dynamo.compile(f, backend="eager")
    x = torch.full((3,), 0.5)
    states = []
    for g in (f, compiled):
        torch.manual_seed(0)
        g(x)
        states.append(torch.rand(3))
    assert torch.equal(*states)


def test_torchs_own_managers_do_not_break_graphs() -> None:
    def f(x: Any, i: Any) -> Any:
        with torch.no_grad():
            dynamo.graph_break()
            with torch.autocast("cpu"):
                x.add_(1)
                return x[i]

    dynamo.counters.clear()
    dynamo.compile(f, backend="eager")(torch.ones(3), T([1]))
    assert list(dynamo.counters["graph_break"].values()) == [1]


def test_hooks_of_modules_do_not_break_graphs() -> None:
    class Picks(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            x.add_(1)
            return x[i]

    module, seen = Picks(), list[int]()
    module.register_forward_hook(lambda module, given, result: seen.append(1))
    dynamo.counters.clear()
    dynamo.compile(module, backend="eager")(torch.ones(3), T([1]))
    assert seen == [1] and not dynamo.counters["graph_break"]


def test_a_whole_graph_stays_whole() -> None:
    def f(x: Any, i: Any) -> Any:
        try:
            x.add_(1)
            return x[i]
        except IndexError:
            return x

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    assert compiled(torch.ones(3), T([1])).tolist() == [2.0]


def test_operators_of_other_libraries_are_caught() -> None:
    calls = []

    @torch.library.custom_op("failing_operations::refuse", mutates_args=())
    def refuse(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if x.sum() > 3:
            raise ValueError("too much")
        return x.clone()

    refuse.register_fake(torch.empty_like)

    def f(x: Any) -> Any:
        y = x * 2
        try:
            return torch.ops.failing_operations.refuse(y) + 1
        except ValueError as error:
            return y - 1, str(error)

    compiled = dynamo.compile(f, backend="eager")
    assert compiled(torch.ones(1)).tolist() == [3.0]
    y, text = compiled(torch.ones(3))
    assert y.tolist() == [1.0] * 3 and text == "too much" and len(calls) == 2


@pytest.mark.parametrize("layer, training, graphs", [
    (nn.BatchNorm1d(3), False, 1), (nn.BatchNorm1d(3), True, 2),
    (nn.LSTM(3, 3, 2, dropout=0.5), False, 1), (nn.LSTM(3, 3, 2, dropout=0.5), True, 2),
    (nn.GRU(3, 3), True, 1),
])  # fmt: skip
def test_layers_beside_an_error_that_is_caught(layer: nn.Module, training: bool, graphs: int) -> None:
    """Those that draw nothing and keep no statistics may run once more for the handler."""
    layer.train(training)

    def f(x: Any, index: Any) -> Any:
        try:
            y = x.new_zeros(4, 3).index_add_(0, index, x)
        except (IndexError, RuntimeError) as error:
            y = x + len(type(error).__name__)
        return layer(y)

    counter = CompileCounter()
    compiled = dynamo.compile(f, backend=counter)
    for index in (T([0, 1, 1, 3]), T([0, 1, 1, 9])):
        results = []
        kept = {name: value.clone() for name, value in layer.state_dict().items()}
        for call in (f, compiled):
            torch.manual_seed(0)
            layer.load_state_dict(kept)
            result = call(torch.ones(4, 3), index)
            results.append((result, copy.deepcopy(layer.state_dict()), torch.rand(1)))
        torch.testing.assert_close(*results, rtol=0, atol=0)
    assert counter.frame_count == graphs


def test_what_operators_say_of_themselves() -> None:
    aten = torch.ops.aten
    x, i = torch.ones(3, 3), T([1])
    assert may_fail(aten.index.Tensor, (x, [i]), {})
    assert may_fail(aten.index_put.default, (x, [x > 0], x[0]), {})
    assert not may_fail(aten.index_put.default, (x, [x > 0], T(1.0)), {})
    assert may_fail(aten.div.Tensor_mode, (i, i), {"rounding_mode": "floor"})
    assert not may_fail(aten.div.Tensor_mode, (x, i), {"rounding_mode": "floor"})
    assert not may_fail(aten.div.Tensor, (i, i), {})
    assert not may_fail(aten.linalg_inv_ex.default, (x,), {})
    assert may_fail(aten.linalg_inv_ex.default, (x,), {"check_errors": True})
    assert draws(aten.bernoulli.default, (x,), {})
    assert not draws(aten.add.Tensor, (x, x), {})
    attention = aten._scaled_dot_product_flash_attention.default
    assert draws(attention, (x, x, x, 0.5), {}) and not draws(attention, (x, x, x), {})


@pytest.mark.parametrize("action", (torch.min, torch.max, lambda x: x.max(0), lambda x: x.min(0)))
def test_extremes_of_nothing(action: Any) -> None:
    def f(x: Any) -> Any:
        action(x)
        return x + 1

    for backend in ("eager", "inductor"):
        dynamo.reset()
        compiled = dynamo.compile(f, backend=backend)
        errors = []
        for g in (f, compiled):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                g(torch.ones(0))
            errors.append((raised.type, str(raised.value)))
        assert errors[0] == errors[1]
