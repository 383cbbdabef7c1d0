"""Tensors that are made of constants are read while tracing; what is written or varies is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dynamo
from dynamo.base.config import config

X = torch.arange(12.0).reshape(3, 4)


def placed(x: torch.Tensor, key: Any) -> torch.Tensor:
    copy = x.clone()
    copy[key] = 7
    return copy


READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "an index": lambda x: x[torch.tensor([1])[0]],
    "an index among others": lambda x: x[torch.arange(3)[1], :2],
    "an index behind a slice": lambda x: x[:, torch.arange(3)[1]],
    "a place": lambda x: placed(x, torch.arange(3)[1]),
    "a place among others": lambda x: placed(x, (torch.arange(3)[1], slice(1))),
    "tolist": lambda x: x * torch.tensor([[2, 3]]).tolist()[0][1],
    "an unrolled loop": lambda x: [x + i for i in torch.arange(3).tolist()],
    "rates": lambda x: [x * rate.item() for rate in torch.linspace(0, 0.1, 4)],
    "split rates": lambda x: [x * r[0].item() for r in torch.linspace(0, 0.1, 4).split(2)],
    "int": lambda x: x + int(torch.tensor(5.7)),
    "float": lambda x: x + float(torch.tensor(True)),
    "bool": lambda x: x + bool(torch.tensor([5])),
    "complex": lambda x: x + torch.tensor(1j).item(),
    "range": lambda x: [x * i for i in range(torch.tensor(3))],  # type: ignore[call-overload]
    "an index of a list": lambda x: [x, -x][torch.tensor(1)],
    "a slice": lambda x: x[:torch.tensor(2)],
    "a size": lambda x: torch.zeros(torch.arange(3)[2], 4) + x[0],  # type: ignore[call-overload]
    "a view": lambda x: x.view(torch.tensor([3, 4]).prod().item()),
    "in": lambda x: x if 3 in torch.arange(3) else -x,
    "equal": lambda x: x if torch.equal(torch.arange(2), torch.tensor([0, 1])) else -x,
    "allclose": lambda x: x if torch.allclose(torch.ones(2), torch.full((2,), 1.1)) else -x,
    "a mask like x": lambda x: x + 1 if torch.ones_like(x).bool().all() else x - 1,
    "new zeros": lambda x: x + 1 if x.new_zeros(3).any() else x - 1,
    "repeated": lambda x: x.repeat_interleave(torch.tensor([1, 2, 1]).repeat_interleave(
        torch.tensor([1, 1, 1])).tolist()[1], 0),
    "chosen": lambda x: x[:, :torch.arange(5)[torch.arange(5) > 2].tolist()[0]],
    "chosen, and kept": lambda x: (x, torch.arange(5)[torch.arange(5) > 2]),
    "unique": lambda x: x + torch.unique_consecutive(torch.tensor([2, 2, 3])).tolist()[1],
    "a function of numbers": lambda x: x.view(torch.div(12, 5, rounding_mode="trunc"), -1),
    "an assertion": lambda x: (torch._assert(torch.tensor(1) > 0, "no"), x + 1)[1],
    "product of an array": lambda x: x + int(numpy.prod([2, 3])),
    "an array's items": lambda x: [x * i for i in numpy.linspace(0, 1, 4).tolist()],
    "not one value": lambda x: x + torch.arange(3).item(),
    "no truth": lambda x: x if torch.arange(3) else -x,
    "a float as an index": lambda x: [x][torch.tensor(1.0)],
}  # fmt: skip


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return [type(error).__name__, str(error)]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, list) and isinstance(expected[0], str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


# Of symbolic sizes; sized by values.
NOT_SYMBOLIC = ("a mask like x", "repeated", "chosen", "chosen, and kept", "unique")


@pytest.mark.parametrize(
    ("name", "symbolic"), [(n, s) for n in READ for s in (False, True) if not (s and n in NOT_SYMBOLIC)])
def test_read_without_a_break(name: str, symbolic: bool) -> None:
    function = READ[name]
    expected = outcome(lambda: function(X))
    dynamo.counters.clear()
    compiled = dynamo.compile(function, backend="eager", dynamic=symbolic or None)
    assert_same(outcome(lambda: compiled(X)), expected)
    breaks = {key for key in dynamo.counters["graph_break"] if "escaping" not in key}
    assert not breaks


@pytest.mark.parametrize("name", [name for name in READ if "array" not in name])
def test_the_default_backend_agrees(name: str) -> None:
    compiled = dynamo.compile(READ[name])
    expected = outcome(lambda: READ[name](X))
    assert_same(outcome(lambda: compiled(X)), expected)


def through_data(t: torch.Tensor) -> None:
    t.data.fill_(1)


def through_a_list(t: torch.Tensor) -> None:
    torch._foreach_add_([t], 1)


def through_a_view(t: torch.Tensor) -> None:
    t.expand(2)[0].fill_(1)


def through_a_large_view(t: torch.Tensor) -> None:
    t.expand(5000).unbind()[3].fill_(1)


def through_an_array(t: torch.Tensor) -> None:
    t.numpy()[0] = 1


def in_inference_mode(t: torch.Tensor) -> None:
    with torch.inference_mode():
        t.view(1).add_(1)


def as_out(t: torch.Tensor) -> None:
    torch.ones(1, out=t)


def as_statistics(t: torch.Tensor) -> None:
    x = torch.arange(4.0).reshape(4, 1)
    torch.nn.functional.batch_norm(x, t, torch.ones(1), training=True)


def by_an_optimizer(t: torch.Tensor) -> None:
    torch._fused_sgd_([t], [torch.ones(1)], [], weight_decay=0.0, momentum=0.0, lr=-1.0,
                      dampening=0.0, nesterov=False, maximize=False, is_first_step=False)


WRITES = [through_data, through_a_list, through_a_view, through_a_large_view, through_an_array,
          in_inference_mode, as_out, as_statistics, by_an_optimizer]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_is_not_known(write: Callable[[torch.Tensor], None], symbolic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        t = torch.zeros(1)
        u = torch.tensor([0.0])
        before = bool(t), bool(u)
        write(t)
        write(u)
        return before, x + 1 if t else x - 1, x + 1 if u else x - 1, x + u.item()

    compiled = dynamo.compile(function, backend="eager", dynamic=symbolic or None)
    torch.testing.assert_close(compiled(X), function(X))


def scaled(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + 1 if torch.tensor(2.0) * number > 5 else x - 1


def scaled_in_place(x: torch.Tensor, number: float) -> torch.Tensor:
    t = torch.tensor(2.0)
    t *= number
    return x + t.item()


def filled(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + torch.full((2,), number)[0].item()


def written_down(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + torch.tensor([number, 1]).tolist()[0]


def raised(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + torch.pow(torch.arange(4), number)[1:].tolist()[1]


@pytest.mark.parametrize("function", [scaled, scaled_in_place, filled, written_down, raised])
@pytest.mark.parametrize("numbers", [(1.0, 2.0, 3.0, 1.0), (1, 2, 3, 1, 7)])
@pytest.mark.parametrize("scalars", [False, True])
def test_numbers_that_vary_are_not_known(
    function: Callable[..., torch.Tensor], numbers: tuple[Any, ...], scalars: bool,
) -> None:
    compiled = dynamo.compile(function, backend="eager")
    with config.patch(capture_scalar_outputs=scalars):
        for number in numbers:
            torch.testing.assert_close(compiled(X, number), function(X, number), rtol=0, atol=0)


def test_which_branch_of_a_condition_has_run_is_not_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        chosen = torch.cond(x.sum() > 0, lambda: torch.tensor(1), lambda: torch.tensor(2))
        return x + 5 if chosen == 1 else x - 5

    compiled = dynamo.compile(function, backend="eager")
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), function(x))


def test_how_often_a_loop_has_run_is_not_known() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def function(x: torch.Tensor) -> torch.Tensor:
        (n, y) = while_loop(lambda n, y: (n < 3) & (y.sum() < 100),
                            lambda n, y: (torch.tensor(3), y + 1), (torch.tensor(0), x))
        return y * 2 if n == 3 else y

    compiled = dynamo.compile(function, backend="eager")
    for x in (X, X * 100):
        torch.testing.assert_close(compiled(x), function(x))


def draws(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(2).tolist()[0] + torch.bernoulli(torch.full((2,), 0.5))[0].item()


def of_empty(x: torch.Tensor) -> torch.Tensor:
    return x + torch.empty(2).fill_(3).tolist()[0]


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        weight = torch.linspace(0, 1, 9).reshape(3, 3)
        return x + (weight @ weight).sum().item()


def with_a_history(x: torch.Tensor) -> torch.Tensor:
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    chosen = leaf[torch.tensor([True, False, True])]
    (grad,) = torch.autograd.grad(chosen.sum(), leaf)
    return x + grad.sum()


@pytest.mark.parametrize("function", [with_a_history, draws, of_empty, in_autocast])
def test_as_eager(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = function(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(X), expected, rtol=0, atol=0)


STATE = [1]


@torch.compiler.allow_in_graph
def read_state() -> torch.Tensor:
    return torch.tensor(STATE[0])


def test_what_a_function_in_the_graph_makes_is_not_known() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if read_state() == 1 else x - 1

    compiled = dynamo.compile(function, backend="eager")
    for state in (1, 2):
        STATE[0] = state
        torch.testing.assert_close(compiled(X), function(X))


def test_the_reason_of_a_break_names_the_function_without_its_address():
    def f(x):
        return x + torch.tensor([], dtype=x.dtype).unique(return_inverse=True)[1].sum()

    dynamo.counters.clear()
    x = torch.ones(3)
    assert torch.equal(dynamo.compile(f, backend="eager")(x), f(x))
    assert list(dynamo.counters["graph_break"]) == ["dynamic_output_shape: Tensor.unique"]
