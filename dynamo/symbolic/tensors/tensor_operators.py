"""Operators on tensors: the usual operands of a model, asked before all other kinds.

A tensor beside an object, a text or an array is left to the rows of `python/operators.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dynamo.base.subclasses import PLAIN
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.operators import BINARY, function_of
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import call_in_graph

NUMBERS = (int, float, bool)


def register(function: Callable[..., Any], plain: Callable[..., Any]) -> None:
    """The rows of one operator. plain: it, not in place, for a number on the left."""

    @first_rule(function, ConstVar, TensorVar)
    def number_on_the_left(tx: Frame, a: Var, b: Var) -> Var | None:
        if type(a) is not ConstVar or type(b) is not TensorVar or a.python_type() not in NUMBERS:
            return None
        if b.cls not in PLAIN or tensor_state(tx.trace).function_modes:
            return None
        return call_in_graph(tx, plain, [a, b], {})

    @first_rule(function, TensorVar, (TensorVar, ConstVar))
    def tensor_on_the_left(tx: Frame, a: Var, b: Var) -> Var | None:
        if type(a) is not TensorVar or type(b) not in (TensorVar, ConstVar):
            return None
        if a.cls not in PLAIN or type(b) is TensorVar and b.cls not in PLAIN or (
                tensor_state(tx.trace).function_modes):  # as `overriding` has it
            return None
        a.python_type()  # that it is a plain tensor is guarded first
        return call_in_graph(tx, function, [a, b], {})


for _name in BINARY:
    register(function_of(_name), function_of(_name))
    register(getattr(operator, "i" + _name), function_of(_name))
