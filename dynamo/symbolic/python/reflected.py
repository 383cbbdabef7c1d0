"""Whose special method is asked first: `a.__op__(b)` or the reflected `b.__rop__(a)`; and where it
is not asked at all."""

from __future__ import annotations

import collections

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, find_owner, is_derived
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import ExceptionVar
from dynamo.symbolic.python.objects import HEAP_TYPE, ObjectVar
from dynamo.symbolic.python.python_modules import PythonModuleVar

REPEATED = str | bytes | list | tuple | collections.deque


def user_method(tx: Frame, var: Var, name: str) -> Var | None:
    """A special method of a user's object, None where its class has none."""
    if not isinstance(var, ObjectVar):
        return None
    return var.special(tx, name)


def unless_not_implemented(result: Var) -> Var | None:
    if result.is_constant() and result.as_constant() is NotImplemented:
        return None
    return result


ORDERS = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})


def try_user(tx: Frame, a: Var, b: Var, forward: str, backward: str) -> Var | None:
    """`a.__op__(b)`, then `b.__rop__(a)`; a subclass on the right goes first."""
    calls = [(a, forward, b), (b, backward, a)]
    first, second = a.python_type(), b.python_type()
    if first is second:
        calls = calls[:1] if backward.startswith("__r") else calls
    elif is_derived(second, first) and goes_first(first, second, backward):
        calls.reverse()
    find_special = tx.trace.attributes.find_special
    for owner, name, other in calls:
        if name in ORDERS and find_special(owner.python_type(), name) is getattr(object, name):
            continue  # which is never implemented
        method = user_method(tx, owner, name)
        if method is not None:
            result = unless_not_implemented(tx.call(method, [other], {}))
            if result is not None:
                return result
    return None


def goes_first(left: type, right: type, backward: str) -> bool:
    """True where the reflected method of a subclass on the right is asked before the left's own:
    always for comparisons, else where it is not the one that the left has, too."""
    if not backward.startswith("__r") or left.__flags__ & HEAP_TYPE == 0:
        return True
    return find_in_mro(left, backward) is not find_in_mro(right, backward)


def has_special(tx: Frame, var: Var, name: str) -> bool:
    return tx.trace.attributes.find_special(var.python_type(), name) is not None


def has_own_operator(tx: Frame, var: Var, name: str) -> bool:
    """True for a class, an exception, a module and what is not known, for which a method answers
    that is not that of `object`: it breaks the graph."""
    if not isinstance(var, ClassVar | ExceptionVar | PythonModuleVar | OpaqueVar):
        return False
    tx.trace.attributes.find_special(var.python_type(), name)
    found = find_owner(var.python_type(), name)
    return found is not None and found[0] is not object


def is_left_to_c(tx: Frame, name: str, a: Var, b: Var) -> bool:
    """True where the reflected method of a user's object is not the one that counts: texts format
    what is no text themselves, and a sequence on the right is repeated before `a.__rmul__`."""
    if name == "mod" and isinstance(b, ObjectVar) and has_special(tx, b, "__rmod__"):
        return issubclass(a.python_type(), str | bytes | bytearray) and not is_derived(
            b.python_type(), a.python_type())
    return (
        name == "mul" and isinstance(a, ObjectVar) and issubclass(b.python_type(), REPEATED)
        and has_special(tx, a, "__rmul__") and not has_special(tx, a, "__mul__")
    )
