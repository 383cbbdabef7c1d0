"""What the interpreter demands of the result of a special method: its type, and for sizes its sign.

In: the name of the method, the object it was called on, and its result. Out: the result as the
interpreter goes on with it, or the traced program's TypeError or ValueError.
"""

from __future__ import annotations

import operator
import sys

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import told_name
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import is_open
from dynamo.symbolic.shapes.unknown import is_unknown

# The type that is asked for, and the text of the TypeError.
TYPES: dict[str, tuple[type, str]] = {
    "__bool__": (bool, "__bool__ should return bool, returned {got}"),
    "__str__": (str, "__str__ returned non-string (type {got})"),
    "__repr__": (str, "__repr__ returned non-string (type {got})"),
    "__format__": (str, "__format__ must return a str, not {got}"),
    "__hash__": (int, "__hash__ method should return an integer"),
    "__index__": (int, "__index__ returned non-int (type {got})"),
    "__int__": (int, "__int__ returned non-int (type {got})"),
    "__float__": (float, "{cls}.__float__ returned non-float (type {got})"),
    "__complex__": (complex, "{cls}.__complex__ returned non-complex (type {got})"),
    "__length_hint__": (int, "__length_hint__ must be an integer, not {got}"),
}
# Whose results are to be exactly of the type: of a subclass Python warns.
WARNING = frozenset({"__index__", "__int__", "__float__", "__complex__"})
NO_INTEGER = "'{got}' object cannot be interpreted as an integer"


def as_demanded(tx: Frame, name: str, cls: type, result: Var) -> Var:
    """The result of a special method of an instance of `cls`, checked."""
    if name == "__len__":
        return as_size(tx, result)
    if name not in TYPES:
        return result
    wanted, message = TYPES[name]
    got = result.python_type()
    if not issubclass(got, wanted):
        tx.trace.raise_exception(TypeError, message.format(got=told_name(got), cls=told_name(cls)))
    if name in WARNING and got is not wanted:
        raise Break("call_of_unknown_function", f"{name} gives a {got.__name__}, which warns")
    if name == "__hash__" and result.is_constant():
        number = int(result.as_constant())
        fits = -sys.maxsize - 1 <= number <= sys.maxsize and number != -1
        return ConstVar(number if fits else hash(number))
    if name == "__length_hint__" and result.is_constant() and result.as_constant() < 0:
        tx.trace.raise_exception(ValueError, "__length_hint__() should return >= 0")
    return result


def as_size(tx: Frame, result: Var) -> Var:
    """What `len` makes of the result of `__len__`."""
    got = result.python_type()
    if not issubclass(got, int) and tx.trace.attributes.find_special(got, "__index__") is None:
        tx.trace.raise_exception(TypeError, NO_INTEGER.format(got=told_name(got)))
    if got is not int and not is_open(result):
        result = ConstVar(tx.trace.as_index(tx, result))
    if type(result) is ConstVar and result.value > sys.maxsize:
        tx.trace.raise_exception(OverflowError, "cannot fit 'int' into an index-sized integer")
    if not is_unknown(result) and tx.trace.call(tx, operator.lt, result, ConstVar(0)).truth(tx):
        tx.trace.raise_exception(ValueError, "__len__() should return >= 0")
    return result
