"""`copy.deepcopy` of numbers and texts, which are their own copies."""

import copy
from typing import Any
from unittest import mock

import torch

import dynamo
from dynamo.symbolic.machine.frame import SymbolicFrame


def test_numbers_and_texts_are_their_own_copies() -> None:
    def f(t: torch.Tensor, x: Any) -> Any:
        memo: dict[int, Any] = {}
        again = copy.deepcopy(x, memo)
        whole = {"a": [x, "b", (None, 1.5)], 2: x}
        made = copy.deepcopy(whole)
        return again is x, copy.deepcopy(x) is x, len(memo), made, made["a"] is whole["a"], t + 1

    for x in (3, True, 2.5, "text", None, b"ab", 1j, 10**30):
        dynamo.reset()
        expected = f(torch.ones(2), x)
        found = dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2), x)
        assert found[:5] == expected[:5], x
        assert str(found[3]) == str(expected[3])


def test_a_memo_that_knows_a_number_gives_what_it_has() -> None:
    def f(t: torch.Tensor, x: str) -> Any:
        memo = {id(x): "instead"}
        return copy.deepcopy([x, "other"], memo), copy.deepcopy(x, memo), t + 1

    x = "a text of the program"
    found = dynamo.compile(f, backend="eager")(torch.ones(2), x)
    assert found[:2] == f(torch.ones(2), x)[:2]  # Python 3.14 asks no memo


def test_copiers_that_are_registered_for_texts_are_called() -> None:
    def f(t: torch.Tensor, x: Any) -> Any:
        return copy.deepcopy([x, 1]), t + 1

    compiled, dispatch = dynamo.compile(f, backend="eager"), copy._deepcopy_dispatch
    assert compiled(torch.ones(2), "a")[0] == ["a", 1]
    with mock.patch.dict(dispatch, {str: lambda x, memo: x + "!"}):
        assert compiled(torch.ones(2), "a")[0] == f(torch.ones(2), "a")[0]
    assert compiled(torch.ones(2), "a")[0] == ["a", 1]


def test_the_code_of_copy_is_not_traced_for_numbers() -> None:
    traced: list[str] = []
    step = SymbolicFrame.step

    def counting(frame: SymbolicFrame) -> None:
        traced.append(frame.code.co_name)
        step(frame)

    def f(t: torch.Tensor) -> Any:
        return copy.deepcopy({"a": 1, "b": 2.5, "c": None}), t + 1

    with mock.patch.object(SymbolicFrame, "step", counting):
        dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert "_deepcopy_dict" in traced and "_deepcopy_atomic" not in traced
