"""How many items an iterable has, as lists and dicts ask before they take them."""

from __future__ import annotations

import sys
import types

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.demands import as_demanded
from dynamo.symbolic.python.functions import FunctionVar
from dynamo.symbolic.python.objects import ObjectVar

TUPLES_ASK = sys.version_info < (3, 14)  # how many items there are, before they take them
WRAPPERS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


def unpack_sized(tx: Frame, var: Var) -> list[Var]:
    """All items, as `list(var)` reads them."""
    if not isinstance(var, ObjectVar | ClassVar):
        return var.unpack(tx)
    return iterate_sized(tx, var).remaining_items(tx)


def unpack_for_tuple(tx: Frame, var: Var) -> list[Var]:
    """All items, as `tuple(var)` and `f(*var)` read them."""
    return unpack_sized(tx, var) if TUPLES_ASK else var.unpack(tx)


def iterate_sized(tx: Frame, var: Var) -> Var:
    """`iter(var)` for a list of the items, for which an object is asked how many there are."""
    iterator = var.iterate(tx)
    if isinstance(var, ObjectVar) or (isinstance(var, ClassVar) and var.has_own_length()):
        length_hint(tx, var, ConstVar(8))
    return iterator


def has_keys(tx: Frame, var: Var) -> bool:
    """True for what `dict` and `**` take for a mapping."""
    if tx.trace.attributes.find_special(var.python_type(), "keys") is not None:
        return True
    if isinstance(var, ObjectVar | ClassVar | FunctionVar) and var.has_attr(tx, "keys"):
        raise Break("call_of_unknown_function", f"a dict of {var!r}, which has keys of its own")
    return False


def length_hint(tx: Frame, var: Var, default: Var) -> Var:
    """`operator.length_hint(var, default)` of what methods of the program say."""
    cls = var.python_type()
    for name in ("__len__", "__length_hint__"):
        found = tx.trace.attributes.find_special(cls, name)
        if isinstance(found, (types.NoneType, *WRAPPERS)):
            continue
        method = tx.trace.attributes.bind(tx, var, cls, name)
        try:
            result = tx.call(method, [], {})
            if name == "__len__":
                return as_demanded(tx, name, cls, result)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), TypeError):
                raise
            continue
        if not (result.is_constant() and result.as_constant() is NotImplemented):
            return as_demanded(tx, name, cls, result)
    return default


def is_iterable(trace: Evaluation, var: Var) -> bool:
    cls = var.python_type()
    return any(trace.attributes.has_special(cls, name) for name in ("__iter__", "__getitem__"))
