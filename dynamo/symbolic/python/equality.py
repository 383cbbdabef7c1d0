"""Equality of Vars, as containers and operators compare values."""

from __future__ import annotations

import operator

from dynamo.symbolic.core.constant import ConstVar, is_nan, part_value
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import ObservedException, Var


def equals(tx: Frame, a: Var, b: Var) -> bool:
    """`bool(a == b)`."""
    return tx.trace.call(tx, operator.eq, a, b).truth(tx)


def is_or_equals(tx: Frame, a: Var, b: Var) -> bool:
    """`a is b or a == b`, as containers compare their items."""
    if a is b or equals(tx, a, b):
        return True
    if any(type(var) is not ConstVar or var.python_type() not in (float, complex)
           for var in (a, b)):
        return False  # numbers that are not fixed stay so
    first, second = part_value(a), part_value(b)
    return is_nan(first) and first is second


def is_among(tx: Frame, iterator: Var, item: Var) -> bool:
    """`item in iterator`, which is advanced no further than to the item."""
    while True:
        try:
            other = iterator.next_item(tx)
        except ObservedException as error:
            if issubclass(error.value.python_type(), StopIteration):
                return False
            raise
        if is_or_equals(tx, other, item):
            return True
