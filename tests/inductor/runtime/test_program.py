"""Programs: what wrappers do for a GPU, recorded once and run without Python. Kernels are functions here."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from inductor.runtime._launch import Allocation, KernelCall, OperatorCall

from inductor.runtime.triton_launch import recorded, view

CPU = torch.device("cpu")
FACTS = (8,), (1,), torch.float32


def kernel(function: Callable[..., Any], count: int) -> KernelCall:
    return KernelCall(function, count, ())


add = kernel(lambda x, y, out: torch.add(x, y, out=out), 3)
double = kernel(lambda x, out: torch.mul(x, 2, out=out), 2)
new = Allocation(*FACTS, CPU)
topk = OperatorCall(
    "aten::topk", "", (("whole", 0), ("constant", 3), ("constant", 0), ("constant", True), ("constant", True)),
    (None, ((3,), (1,), torch.int64)), False)  # fmt: skip
sine = OperatorCall("aten::sin", "", (("view", 0, (4,), (2,), 1, torch.float32),), (((4,), (1,), torch.float32),), True)


def test_kernels_operators_views_and_constants() -> None:
    constant = torch.randn(8)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        x, y = args
        args.clear()
        a = new()
        add(0, x, y, a)
        b = new()
        add(0, a, constant, b)
        del y
        _, places = topk(b)
        return sine(b), places, view(a, (2, 2), (1, 4), 1), view(b, (8,), (1,), 0, torch.int32), x, 7, None

    program = recorded(of_list, 2, CPU)
    for _ in range(2):
        x, y = torch.randn(8), torch.randn(8)
        given, again = [x, y], [x, y]
        found, wanted = program(given), of_list(again)
        assert given == again == []
        assert found[4] is x and found[5:] == (7, None)
        for one, other in zip(found[:4], wanted[:4], strict=True):
            assert one.equal(other) and one.stride() == other.stride()
        assert found[2]._base is not None and not found[0].requires_grad


def test_values_die_at_their_last_use() -> None:
    is_dead: list[bool] = []
    look = kernel(lambda a, b: is_dead.append(held() is None), 2)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        (x,) = args
        args.clear()
        a, b = new(), new()
        look(0, a, b)
        double(0, x, a)
        del x
        look(0, a, b)
        return (b,)

    program = recorded(of_list, 1, CPU)
    x = torch.randn(8)
    held, given = weakref.ref(x), [x]
    del x
    program(given)
    assert is_dead == [False, True]


def test_results_lie_over_operands_that_nothing_else_holds() -> None:
    def of_list(args: list[Any]) -> tuple[Any, ...]:
        (x,) = args
        args.clear()
        a = new.over(x)
        double(0, x, a)
        del x
        return (a,)

    def place_of(given: list[torch.Tensor]) -> tuple[int, torch.Tensor]:
        (found,) = program(given)
        return found.data_ptr(), found

    program = recorded(of_list, 1, CPU)
    values = torch.arange(8.0)
    given = [values.clone()]
    place = given[0].data_ptr()
    at, found = place_of(given)
    assert at == place and found.equal(values * 2)
    held = values.clone()
    others = (
        lambda: held,  # the tensor itself is held, its memory is, it does not begin there, it is short
        lambda: held[:],
        lambda: torch.arange(9.0)[1:],
        lambda: torch.arange(1.0).expand(8),
        lambda: torch.arange(8.0, dtype=torch.float64),
    )
    for make in others:
        given = [make()]
        place, wanted = given[0].data_ptr(), given[0].float() * 2
        at, found = place_of(given)
        assert at != place and found.equal(wanted)
    assert held.equal(values)
    assert of_list([held])[0].data_ptr() != held.data_ptr()  # without a recording


def test_errors_come_through_and_leave_nothing_behind() -> None:
    def fail(x: torch.Tensor, out: torch.Tensor) -> None:
        raise ValueError("as asked")

    failing = kernel(fail, 2)

    def of_list(args: list[Any]) -> tuple[Any, ...]:
        (x,) = args
        args.clear()
        out = new()
        failing(0, x, out)
        return (out,)

    program = recorded(of_list, 1, CPU)
    x = torch.randn(8)
    held = weakref.ref(x)
    with pytest.raises(ValueError, match="as asked"):
        program([x])
    del x
    assert held() is None
    with pytest.raises(TypeError, match="takes 1 tensors"):
        program([])
    with pytest.raises(TypeError, match="is no tensor"):
        program([1])
    with pytest.raises(ZeroDivisionError):
        recorded(lambda args: 1 / 0, 1, CPU)
    assert isinstance(new(), torch.Tensor)  # nothing is recorded any more
