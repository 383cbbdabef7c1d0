"""Comparisons over Vars: `==`, `!=`, `<`, `<=`, `>` and `>=`."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, is_own_method
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.equality import equals, is_or_equals
from dynamo.symbolic.python.functions import BuiltinVar, MethodVar
from dynamo.symbolic.python.lists import DequeVar, ListVar, NamedTupleVar, SequenceVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.operators import (
    both,
    check_scalars,
    content_of,
    function_of,
    is_scalar,
    is_set_like,
    of_constants,
)
from dynamo.symbolic.python.ranges import RangeVar
from dynamo.symbolic.python.reflected import has_own_operator, try_user
from dynamo.symbolic.python.sameness import same
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.shapes import numbers, unbacked

COMPARE = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
COMPARISONS = tuple(f"__{name}__" for name in COMPARE)
SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def compared(tx: Frame, name: str, a: Var, b: Var) -> tuple[Var, Var]:
    """The containers inside of two objects, but of those that compare as `object` does."""
    methods = (a, f"__{name}__"), (b, f"__{COMPARE[name]}__")
    if all(
        isinstance(var, ObjectVar)
        and tx.trace.attributes.find_special(var.python_type(), special) is getattr(object, special)
        for var, special in methods
    ):
        return a, b
    return content_of(a), content_of(b)


def compare_sequences(
    tx: Frame, name: str, a: SequenceVar, b: SequenceVar
) -> bool | Var:
    """Lexicographic order, as lists and tuples have it: that of the first items that differ is
    passed on as it is."""
    left, right = a.items, b.items
    if name in ("eq", "ne") and len(left) != len(right) and isinstance(a, ListVar):
        return name == "ne"  # tuples compare their items all the same
    index = 0
    while index < min(len(left), len(right)):  # which comparisons of items may change
        pair = left[index], right[index]
        same = is_or_equals(tx, *pair)
        if not same:
            break
        index += 1
    if index >= min(len(left), len(right)):
        return bool(function_of(name)(len(left), len(right)))
    if name in ("eq", "ne"):
        return name == "ne"
    return tx.trace.call(tx, function_of(name), left[index], right[index])


def equal_dicts(tx: Frame, mine: dict[Any, Any], theirs: dict[Any, Any]) -> bool:
    """Values are compared in the order of the left one, up to the first key that differs."""
    if len(mine) != len(theirs):
        return False
    return all(
        key in theirs and is_or_equals(tx, value, theirs[key][1])
        for key, (_, value) in mine.items()
    )


def compare_containers(tx: Frame, name: str, a: Var, b: Var) -> bool | Var | None:
    if isinstance(a, DequeVar) or isinstance(b, DequeVar):
        raise unbacked_comparison(name, a, b)
    if both(a, b, ListVar) and a.python_type() is b.python_type():
        return compare_sequences(tx, name, a, b)  # type: ignore[arg-type]
    if both(a, b, TupleVar | NamedTupleVar):
        return compare_sequences(tx, name, a, b)  # type: ignore[arg-type]
    if both(a, b, DictVar) and name in ("eq", "ne"):
        mine, theirs = a.entries, b.entries  # type: ignore[attr-defined]
        same = equal_dicts(tx, mine, theirs)
        if a.python_type() is b.python_type() is collections.OrderedDict:
            same = same and list(mine) == list(theirs)
        return same is (name == "eq")
    if is_set_like(a) and is_set_like(b):
        if any(isinstance(var, DictViewVar) and var.part == "items" for var in (a, b)):
            swap = isinstance(a, SetVar)  # which leaves it to the view
            return compare_items(tx, COMPARE[name], b, a) if swap else compare_items(tx, name, a, b)
        return bool(function_of(name)(hash_keys(tx, a), hash_keys(tx, b)))
    return None


def compare_items(tx: Frame, name: str, a: Var, b: Var) -> bool:
    """Views with values that need no hash: those of the one are looked for in the other."""
    sizes = [var.length(tx).as_constant() for var in (a, b)]
    if not function_of("eq" if name == "ne" else name)(*sizes):
        return name == "ne"
    less, more = (b, a) if name in ("gt", "ge") else (a, b)
    found = all(more.contains(tx, item).truth(tx) for item in less.unpack(tx))
    return found is (name != "ne")


def hash_keys(tx: Frame, items: SetVar | DictViewVar) -> set[Any]:
    if isinstance(items, SetVar):
        return set(items.entries)
    return {item.hash_key(tx) for item in items.unpack(tx)}


# Built-in types whose values may equal each other; types with an own `__eq__` that are in no row
# are unknown.
FAMILIES: tuple[tuple[type, ...], ...] = (
    (int, float, complex), (str,), (bytes, bytearray, memoryview), (list,), (tuple,), (range,),
    (slice,), (dict, types.MappingProxyType),
    (set, frozenset, type({}.keys()), type({}.items())),
    (collections.deque,), (type(None), type(...), type(NotImplemented)),
)


def equality_of(tx: Frame, var: Var) -> Any:
    """What the value may equal: "identity", a row of FAMILIES, or None where it is not known."""
    cls = var.python_type()
    method = tx.trace.attributes.find_special(cls, "__eq__")
    if method is object.__eq__:
        return "identity"
    if is_own_method(method):  # of the program: objects have asked it
        return "identity" if isinstance(var, ObjectVar) else None
    if not isinstance(method, types.WrapperDescriptorType):
        return None
    return next((row for row in FAMILIES if issubclass(cls, row)), None)


def are_same(tx: Frame, a: Var, b: Var) -> bool:
    """`a == b` where no rule compares the two: they are equal only when they are one object."""
    if isinstance(a, MethodVar) and isinstance(b, MethodVar):
        pairs = (a.function, b.function), (a.receiver, b.receiver)
        return all(same(tx, *pair) for pair in pairs)
    left, right = equality_of(tx, a), equality_of(tx, b)
    if a is b and (left == "identity" or not isinstance(a, OpaqueVar)):
        return True
    if isinstance(a, BuiltinVar) and isinstance(b, BuiltinVar):
        return bool(a.value == b.value)
    if left is None or right is None or (left == right and left != "identity"):
        raise Break("operator_unknown", f"{a!r} == {b!r}")
    return left == right == "identity" and type(a) is type(b) and same(tx, a, b)


def comparison(name: str) -> Callable[..., Var]:
    """The rule of one comparison: that of the first kind of operands that knows it."""
    real = function_of(name)

    def handle(tx: Frame, a: Var, b: Var) -> Var:
        a.python_type()
        given = (a, b)
        if a.is_value or b.is_value:
            return of_values(tx, real, a, b)
        check_scalars(a, b, SYMBOLS[name])
        if name in ("eq", "ne") and (is_scalar(a) or is_scalar(b)) and (
            a.is_tensor or b.is_tensor
        ):
            raise unbacked_comparison(name, a, b)
        decided = numbers.compare(tx.trace, name, a, b) or unbacked.compare(tx.trace, name, a, b)
        if decided is not None:
            return decided
        if both(a, b, ConstVar | RangeVar):
            return of_constants(tx, real, given, a, b)
        if isinstance(a, ObjectVar) or isinstance(b, ObjectVar):
            found = compare_objects(tx, name, a, b)
            if found is not None:
                return found
        reflected = f"__{COMPARE[name]}__"
        if has_own_operator(tx, a, f"__{name}__") or has_own_operator(tx, b, reflected):
            raise unbacked_comparison(name, a, b)
        left, right = compared(tx, name, a, b)
        if left.is_tensor or right.is_tensor:
            return compare_tensors(tx, name, left, right)
        answer = compare_containers(tx, name, left, right)
        if answer is not None:
            return answer if isinstance(answer, Var) else ConstVar(answer)
        if name in ("eq", "ne"):
            if left.is_constant() and right.is_constant():
                return ConstVar(bool(real(left.as_constant(), right.as_constant())))
            return ConstVar(are_same(tx, a, b) is (name == "eq"))
        if left.is_constant() and right.is_constant():
            return of_constants(tx, real, given, left, right)
        raise unbacked_comparison(name, a, b)

    return handle


def of_values(tx: Frame, real: Callable[[Any, Any], Any], a: Var, b: Var) -> Var:
    """A comparison with a constant that no graph can hold; what is no constant is not equal."""
    given = [var.value if var.is_value else var.as_constant() if var.is_constant() else var  # type: ignore[attr-defined]
             for var in (a, b)]
    return ConstVar(bool(tx.trace.run_real(lambda: real(*given))))


def unbacked_comparison(name: str, a: Var, b: Var) -> Break:
    return Break("operator_unknown", f"{a!r} {SYMBOLS[name]} {b!r}")


def compare_objects(tx: Frame, name: str, a: Var, b: Var) -> Var | None:
    """What the methods of objects answer; None where they have none, or leave it to others."""
    find_special = tx.trace.attributes.find_special
    methods = (a, f"__{name}__"), (b, f"__{name}__"), (b, f"__{COMPARE[name]}__")
    custom = [v for v, special in methods if isinstance(v, ObjectVar)
              and find_special(v.python_type(), special) is not getattr(object, special)]
    if name == "ne" and custom and all(
        find_in_mro(v.python_type(), "__ne__") is object.__ne__ for v in custom
    ):
        return ConstVar(not equals(tx, a, b))
    if not custom and name == "ne" and any(
        isinstance(v, ObjectVar) and find_special(v.python_type(), "__eq__") is not object.__eq__
        for v in (a, b)
    ):
        return ConstVar(not equals(tx, a, b))
    return try_user(tx, a, b, f"__{name}__", f"__{COMPARE[name]}__") if custom else None


def compare_tensors(tx: Frame, name: str, left: Var, right: Var) -> Var:
    """A comparison of which one operand is a tensor: the elements' one, but for equality with what
    is no number."""
    other = right if left.is_tensor else left
    if not other.is_tensor and not (
        other.is_constant() and issubclass(other.python_type(), int | float | complex)
    ):
        if name in ("eq", "ne") and not isinstance(other, OpaqueVar) and (
            equality_of(tx, other) is not None
        ):
            same(tx, left, right)
            return ConstVar(name == "ne")
        raise unbacked_comparison(name, left, right)
    return tx.trace.call_in_graph(tx, function_of(name), [left, right], {})


def method(name: str, kind: type[SequenceVar]) -> Callable[..., Var]:
    """The rule of `list.__eq__` and its like, as instances of subclasses inherit them."""
    def handle(tx: Frame, a: SequenceVar, b: Var) -> Var:
        other = content_of(b)
        if not isinstance(other, kind) or isinstance(other, DequeVar):
            return ConstVar(NotImplemented)
        answer = compare_sequences(tx, name, a, other)
        return answer if isinstance(answer, Var) else ConstVar(answer)

    return handle


for _name in COMPARE:
    rule(function_of(_name))(comparison(_name))
    rule(getattr(list, f"__{_name}__"), ListVar)(method(_name, ListVar))
    rule(getattr(tuple, f"__{_name}__"), TupleVar)(method(_name, TupleVar))
