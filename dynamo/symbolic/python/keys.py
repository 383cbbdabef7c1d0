"""What guards can check of keys of dicts and items of sets without running the program's code."""

from __future__ import annotations

import enum
import types
from typing import Any

from dynamo.base.instances import is_class
from dynamo.symbolic.core.constant import TORCH_VALUE_TYPES, VALUE_TYPES, ConstVar
from dynamo.symbolic.core.lookup import find_in_mro, find_owner, is_own_method, module_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import TupleVar


def compares_silently(cls: type) -> bool:
    """True for types whose `__eq__` is not the program's; that of dataclasses asks fields only."""
    method = find_in_mro(cls, "__eq__")
    return not is_own_method(method) or "__dataclass_params__" in vars(cls)


def hashes_itself(cls: type) -> bool:
    """True for types with a `__hash__` of the program, which guards would call."""
    found = find_owner(cls, "__hash__")
    return (
        found is not None and is_own_method(found[1])
        and module_of(found[0]).partition(".")[0] not in ("enum", "torch")
        and "__dataclass_params__" not in vars(cls)
    )


def is_plain_key(key: Any) -> bool:
    """True for constants, and tuples of constants, whose equality guards can check."""
    if type(key) is tuple:
        return all(is_plain_key(item) for item in key)
    return type(key) in VALUE_TYPES


# How members of enums compare and hash: by themselves, or as the strings or ints that they are.
COMPARED_BY_C: tuple[tuple[Any, Any], ...] = (
    (object.__eq__, enum.Enum.__hash__), (str.__eq__, str.__hash__), (int.__eq__, int.__hash__))


def is_set_item(item: Any) -> bool:
    """True for what a guard on a set's items can check: constants, what equals only itself."""
    if is_class(item):
        return type(item).__hash__ is type.__hash__
    if isinstance(item, enum.Enum):
        return (type(item).__eq__, type(item).__hash__) in COMPARED_BY_C
    if type(item) is types.BuiltinFunctionType:  # a method of an object equals those of equal ones
        return item.__self__ is None or isinstance(item.__self__, types.ModuleType | type)
    return is_plain_key(item) or type(item) in (*TORCH_VALUE_TYPES, types.FunctionType)


NO_KEY = object()


def single_key(var: Var) -> Any:
    """A key whose presence alone a guard can check: a constant, a class, or a tuple of such; NO_KEY
    for others."""
    if isinstance(var, ConstVar) and (
            is_plain_key(var.value) or type(var.value) in TORCH_VALUE_TYPES):
        return var.value
    if isinstance(var, ClassVar) and type(var.cls).__hash__ is type.__hash__:
        return var.cls
    if type(var) is TupleVar:
        parts = tuple(map(single_key, var.items))
        return NO_KEY if any(part is NO_KEY for part in parts) else parts
    return NO_KEY
