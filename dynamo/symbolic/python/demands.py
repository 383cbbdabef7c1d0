"""What the interpreter demands of the result of a special method: its type, and for sizes its sign.

In: the name of the method, the object it was called on, and its result. Out: the result as the
interpreter goes on with it. Errors: Break for what it refuses.
"""

from __future__ import annotations

import operator
import sys

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.shapes.unbacked import is_unbacked

TYPES: dict[str, type] = {
    "__bool__": bool, "__str__": str, "__repr__": str, "__format__": str, "__hash__": int,
    "__index__": int, "__int__": int, "__float__": float, "__complex__": complex,
    "__length_hint__": int,
}
# Whose results are to be exactly of the type: of a subclass Python warns.
WARNING = frozenset({"__index__", "__int__", "__float__", "__complex__"})


def as_demanded(tx: Frame, name: str, cls: type, result: Var) -> Var:
    """The result of a special method of an instance of `cls`, checked."""
    if name == "__len__":
        return as_size(tx, result)
    if name not in TYPES:
        return result
    got = result.python_type()
    if not issubclass(got, TYPES[name]):
        raise Break("call_of_unknown_function", f"{name} of {cls.__name__} gives {result!r}")
    if name in WARNING and got is not TYPES[name]:
        raise Break("call_of_unknown_function", f"{name} gives a {got.__name__}, which warns")
    if name == "__hash__" and result.is_constant():
        number = int(result.as_constant())
        fits = -sys.maxsize - 1 <= number <= sys.maxsize and number != -1
        return ConstVar(number if fits else hash(number))
    if name == "__length_hint__" and result.is_constant() and result.as_constant() < 0:
        raise Break("call_of_unknown_function", f"{name} of {cls.__name__} gives {result!r}")
    return result


def as_size(tx: Frame, result: Var) -> Var:
    """What `len` makes of the result of `__len__`."""
    if result.python_type() is not int and not is_symbolic(result):
        result = ConstVar(tx.trace.as_index(tx, result))
    fits = type(result) is not ConstVar or (
        type(result.value) is int and result.value <= sys.maxsize)
    if not fits or not is_unbacked(result) and (
        tx.trace.call(tx, operator.lt, result, ConstVar(0)).truth(tx)
    ):
        raise Break("call_of_unknown_function", f"__len__ gives {result!r}")
    return result
