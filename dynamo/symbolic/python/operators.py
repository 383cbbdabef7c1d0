"""Operators over Vars: tensors go into the graph, constants are folded, containers and user objects
follow Python's protocol. Those that compare stand in `comparisons`."""

from __future__ import annotations

import collections
import operator
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy

from dynamo.base.errors import Break
from dynamo.symbolic.core import large, table
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, is_own_method
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.containers import changed
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.equality import is_among, is_or_equals
from dynamo.symbolic.python.lists import (
    DequeVar,
    ListVar,
    NamedTupleVar,
    SequenceVar,
    SizeVar,
    TupleVar,
)
from dynamo.symbolic.python.objects import EnumVar, ObjectVar
from dynamo.symbolic.python.ranges import RangeVar
from dynamo.symbolic.python.reflected import (
    REPEATED,
    has_special,
    is_left_to_c,
    try_user,
    unless_not_implemented,
    user_method,
)
from dynamo.symbolic.python.sameness import same
from dynamo.symbolic.python.set_methods import operate_on_views
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import is_iterable
from dynamo.symbolic.python.texts import has_known_text
from dynamo.symbolic.shapes import numbers, unbacked

BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^", "matmul": "@",
}
NUMBERS = int | float | complex
# The classes for which `*=` asks a sequence on its right, as `*` does for all.
BARE = (int, float, complex, bool, types.NoneType)
SETS = {"and": "intersection", "or": "union", "sub": "difference", "xor": "symmetric_difference"}


def function_of(name: str) -> Callable[..., Any]:
    return getattr(operator, name + "_" if name in ("and", "or") else name)  # type: ignore[no-any-return]


def both(a: Var, b: Var, kind: Any) -> bool:
    return isinstance(a, kind) and isinstance(b, kind)


def content_of(var: Var) -> Var:
    """The container inside of an instance of a container's subclass."""
    if isinstance(var, ObjectVar) and var.content is not None:
        return var.content
    return var


def union_of_dicts(tx: Frame, a: DictVar, b: DictVar) -> Var:
    """`a | b`: of the kind of the left one, or of the right one where that is a subclass."""
    left, right = a.python_type(), b.python_type()
    chosen = b if right is not left and issubclass(right, left) else a
    result = DictVar.from_pairs(
        tx, [*a.entries.values(), *b.entries.values()], chosen.python_type())
    result.factory = chosen.factory
    return result


def is_set_like(var: Var) -> TypeGuard[SetVar | DictViewVar]:
    """True for sets and for views of keys or items; a view of values has no such operators."""
    return isinstance(var, SetVar) or (isinstance(var, DictViewVar) and var.part != "values")


def builtin_binary(tx: Frame, name: str, a: Var, b: Var) -> Var | None:
    """Operators between containers."""
    if name == "add" and both(a, b, SequenceVar) and a.python_type() is b.python_type():
        return a.clone([*a.items, *b.items])  # type: ignore[attr-defined]
    if name == "add" and both(a, b, TupleVar | NamedTupleVar):
        items = [*a.items, *b.items]  # type: ignore[attr-defined]
        if isinstance(a, SizeVar) or isinstance(b, SizeVar):
            if any(item.python_type() is not int for item in items):
                raise Break("operator_unknown", f"{a!r} + {b!r}")
            return SizeVar(items)
        return TupleVar(items)
    if name == "mul":
        sequence, count = (a, b) if isinstance(a, SequenceVar) else (b, a)
        if isinstance(sequence, SequenceVar) and count.is_constant():
            times = tx.trace.as_index(tx, count)
            if times is not None:
                large.break_where_large(operator.mul, [sequence.items, times])
                items = tx.trace.run_real(lambda: sequence.items * times)
                return sequence.clone(items)
    if name in SETS and is_set_like(a) and is_set_like(b):
        if isinstance(a, DictViewVar) or isinstance(b, DictViewVar):
            return operate_on_views(tx, SETS[name], function_of(name), a, b)
        return a.call_method(tx, SETS[name], [b], {})
    if name == "or" and both(a, b, DictVar):
        return union_of_dicts(tx, a, b)  # type: ignore[arg-type]
    return None


# Whose `|` gives another instance of the subclass.
OWN_UNION = (collections.OrderedDict, collections.defaultdict)
ALIASES = (types.GenericAlias, types.UnionType, typing._GenericAlias)  # type: ignore[attr-defined]


@rule([types.GenericAlias.__or__, types.UnionType.__or__, type.__or__])
def union_of_types(tx: Frame, left: Var, right: Var) -> Var | None:
    """`int | None` and the like, of existing classes and aliases."""
    parts = []
    for var in (left, right):
        real = getattr(var, "real", None)
        if real is None:
            real = getattr(var, "value", None)
        if isinstance(var, ClassVar):
            real = var.cls
            tx.trace.attributes.find_special(type(real), "__or__")
        if var.is_constant() and var.as_constant() is None:
            real = None
        elif not issubclass(type(real), (type, *ALIASES)):
            return None
        elif not isinstance(var, ClassVar):
            tx.trace.guard("ID", var.source, real)
        parts.append(real)
    if parts == [None, None] or not any(issubclass(type(part), (type, *ALIASES)) for part in parts):
        return None
    return tx.trace.wrap(tx.trace.run_real(lambda: operator.or_(*parts)), None)


def plain_number(var: Var, name: str) -> Var:
    """The number that a member of an int or float enumeration is, where the operator is its own."""
    if isinstance(var, EnumVar) and issubclass(var.cls, int | float):
        for method in (f"__{name}__", f"__r{name}__"):
            if is_own_method(find_in_mro(var.cls, method)):
                return var
        kind = int if issubclass(var.cls, int) else float
        return ConstVar(kind(var.as_constant()))
    return var


@dataclass(frozen=True, slots=True)
class Operator:
    """An arithmetic operator. name: as in `operator`; shown: how errors write it.

    real: the function of `operator`; plain: the same where it is in place, and is not done so.
    """

    name: str
    symbol: str
    inplace: bool
    shown: str
    real: Callable[..., Any]
    plain: Callable[..., Any]


def operator_of(name: str, symbol: str, inplace: bool) -> Operator:
    plain = function_of(name)
    real = getattr(operator, "i" + name) if inplace else plain
    shown = f"{symbol}=" if inplace else "** or pow()" if name == "pow" else symbol
    return Operator(name, symbol, inplace, shown, real, plain)


def binary(op: Operator) -> Callable[..., Var]:
    """The rule of one arithmetic operator: that of the first kind of operands that knows it."""
    name = op.name

    def handle(tx: Frame, a: Var, b: Var) -> Var:
        given = (a, b)
        check_scalars(a, b, op.shown)
        a = plain_number(a, name)
        formats = name == "mod" and issubclass(a.python_type(), str | bytes)
        if not formats:
            b = plain_number(b, name)
        check_repeating(tx, op, given, a, b)
        number = numbers.binary(tx.trace, name, a, b) or unbacked.binary(tx.trace, name, a, b)
        if number is not None:
            return number
        if both(a, b, ConstVar):
            return of_folded(tx, op, given, a, b)
        check_list_methods(tx, op, a, b)
        found = in_place(tx, op, a, b) if op.inplace else None
        if found is not None:
            return found
        if is_left_to_c(tx, name, a, b):
            raise Break("operator_unknown", f"{a!r} {op.shown} {b!r}")
        if isinstance(a, ObjectVar) or isinstance(b, ObjectVar):
            found = try_user(tx, a, b, f"__{name}__", f"__r{name}__")
            if found is not None:
                return found
        found = of_texts(tx, op, formats, a, b)
        if found is None and name == "or":
            found = of_classes(tx, a, b)
        if found is None:
            found = builtin_binary(tx, name, content_of(a), content_of(b))
        if found is not None:
            return found
        if a.is_constant() and b.is_constant():
            return of_constants(tx, op.real, given, a, b)
        raise Break("operator_unknown", f"{a!r} {op.symbol} {b!r}")

    return handle


def check_repeating(tx: Frame, op: Operator, given: tuple[Var, Var], a: Var, b: Var) -> None:
    """The error of `*=` between a member of an enumeration of numbers and a sequence."""
    kind = given[0].python_type()
    if op.inplace and op.name == "mul" and a is not given[0] and kind not in BARE and (
        issubclass(kind, NUMBERS) and issubclass(b.python_type(), REPEATED)
    ):
        raise Break("operator_unknown", f"{given[0]!r} {op.shown} {b!r}")


def check_list_methods(tx: Frame, op: Operator, a: Var, b: Var) -> None:
    """Breaks where a method that a list's subclass inherits is not what the operator asks first:
    methods of numbers, on the right too, come before those of sequences, but for `+=`."""
    if not isinstance(a, ObjectVar) or type(a.content) is not ListVar:
        return
    name, reflected = f"__{op.name}__", f"__r{op.name}__"
    first = f"__i{op.name}__" if op.inplace else name
    if (op.name, op.inplace) not in NUMBERS_FIRST or not is_inherited(a, first):
        return
    kind = b.python_type()
    on_right = kind is not int and has_special(tx, b, reflected) and (
        find_in_mro(kind, reflected) not in REPEATS)
    if on_right or not is_inherited(a, name):
        raise Break("operator_unknown", f"{a!r} {op.shown} {b!r}")


def is_inherited(var: ObjectVar, name: str) -> bool:
    """True where the class of a list has the method from `list`."""
    return find_in_mro(var.cls, name) is find_in_mro(list, name)


NUMBERS_FIRST = {("add", False), ("mul", False), ("mul", True)}
REPEATS = (list.__rmul__, tuple.__rmul__)  # which repeat a sequence, too


def of_folded(tx: Frame, op: Operator, given: tuple[Var, Var], a: Var, b: Var) -> Var:
    """The operation on two constants."""
    try:
        result = table.fold(tx, op.real, [a, b], {})
    except ObservedException as error:
        if given == (a, b):
            raise
        raise Break("operator_unknown", f"{given} fails") from error  # it names other types
    assert result is not None
    return result


def in_place(tx: Frame, op: Operator, a: Var, b: Var) -> Var | None:
    """What the object on the left does to itself; None where it makes another."""
    method = user_method(tx, a, f"__i{op.name}__")
    if method is not None:
        found = unless_not_implemented(tx.call(method, [b], {}))
        if found is not None:
            return found
    if isinstance(a, ListVar) and op.name == "add":
        if isinstance(b, ObjectVar) and has_special(tx, b, "__radd__"):
            raise Break("operator_unknown", f"{a!r} += {b!r}")  # which is asked first
        a.call_method(tx, "extend", [b], {})
        return a
    if isinstance(a, ListVar) and op.name == "mul":
        times = tx.trace.as_index(tx, b) if b.is_constant() else None
        if times is not None:
            large.break_where_large(operator.mul, [a.items, times])
            items = tx.trace.run_real(lambda: a.items * times)
            if isinstance(a, DequeVar):
                return replace_in_deque(tx, a, items)
            a.change(tx)[:] = items
            return a
    if both(a, b, SetVar) and op.name in SETS and a.python_type() is set:
        update = "update" if op.name == "or" else SETS[op.name] + "_update"
        a.call_method(tx, update, [b], {})
        return a
    if isinstance(a, DictVar) and op.name == "or":
        a.call_method(tx, "update", [b], {})
        return a
    return None


def replace_in_deque(tx: Frame, var: DequeVar, items: list[Var]) -> DequeVar:
    """The last of these that it may hold; a full one stays, and iterators do not mind."""
    remaining = items if var.limit is None else items[max(0, len(items) - var.limit) :]
    if len(remaining) != len(var.items):
        changed(tx, var)[:] = remaining
    return var


def of_texts(tx: Frame, op: Operator, formats: bool, a: Var, b: Var) -> Var | None:
    """The operation on tensors beside objects, and the formatting of texts by `%`."""
    if formats and b.is_tensor:
        raise Break("item", f"{a!r} % {b!r}")
    if a.is_tensor or b.is_tensor:
        return tx.trace.call_in_graph(tx, op.real if a.is_tensor else op.plain, [a, b], {})
    if formats and issubclass(a.python_type(), bytes):
        raise Break("operator_unknown", f"{a!r} % {b!r}")
    if op.name == "mod" and a.is_constant() and isinstance(a.as_constant(), str):
        if not has_known_text(b):
            raise Break("not_a_constant", f"the text of {b!r}")
        operand = table.plain_value(b)
        table.order_sets(tx, b)
        large.break_where_large(operator.mod, [a.as_constant(), operand])
        return tx.trace.constant(tx.trace.run_real(lambda: a.as_constant() % operand))
    return None


def of_classes(tx: Frame, a: Var, b: Var) -> Var | None:
    """`int | None` and the like."""
    found = union_of_types(tx, a, b)
    if found is None and any(
        isinstance(v, ObjectVar) and issubclass(v.python_type(), OWN_UNION) for v in (a, b)
    ):
        raise Break("operator_unknown", f"{a!r} | {b!r}")
    return found


def of_constants(
    tx: Frame, real: Callable[..., Any], given: tuple[Var, Var], a: Var, b: Var
) -> Var:
    """The operation on constants, which may be the plain values of the given ones."""
    values = a.as_constant(), b.as_constant()
    large.break_where_large(real, values)
    if given == (a, b):
        return tx.trace.constant(tx.trace.run_real(lambda: real(*values)))
    try:
        return tx.trace.constant(real(*values))
    except TypeError as error:
        raise Break("operator_unknown", f"{given} fails") from error  # it names other types


def is_scalar(var: Var) -> bool:
    """True for a number of numpy that is known."""
    return isinstance(var, ConstVar) and issubclass(var.python_type(), numpy.generic)


def check_scalars(a: Var, b: Var, symbol: str) -> None:
    """Breaks where numpy makes an array of the operand beside one of its numbers."""
    for one, other in ((a, b), (b, a)):
        if is_scalar(one) and isinstance(other, ObjectVar | SequenceVar | DictVar) and not (
            symbol == "*" and repeats(one, other)
        ):
            raise Break("operator_unknown", f"{a!r} {symbol} {b!r}")


def repeats(times: Var, items: Var) -> bool:
    """True where a whole number of numpy repeats a list or tuple, as one of Python does."""
    return items.python_type() in (list, tuple) and issubclass(times.python_type(), numpy.integer)


INVERT_WARNS = sys.version_info >= (3, 12)  # of a bool


def unary(name: str, real: Callable[..., Any], words: str) -> Callable[..., Var]:
    def handle(tx: Frame, a: Var) -> Var:
        if real is operator.invert and INVERT_WARNS and (
            not a.is_tensor and a.python_type() is bool
        ):
            raise Break("operator_unknown", f"~ of {a!r}, which warns each time")
        number = numbers.unary(tx.trace, name, a) or unbacked.unary(tx.trace, name, a)
        if number is not None:
            return number
        if a.is_tensor:
            return tx.trace.call_in_graph(tx, real, [a], {})
        method = user_method(tx, a, f"__{name}__")
        if method is not None:
            return method.call(tx, [], {})
        if a.is_constant():
            return tx.trace.constant(tx.trace.run_real(lambda: real(a.as_constant())))
        raise Break("operator_unknown", f"{words} of {a!r}")

    return handle


def register() -> None:
    for name, symbol in BINARY.items():
        for inplace in (False, True):
            op = operator_of(name, symbol, inplace)
            rule(op.real)(binary(op))
    rule(operator.neg)(unary("neg", operator.neg, "unary -"))
    rule(operator.pos)(unary("pos", operator.pos, "unary +"))
    rule(operator.invert)(unary("invert", operator.invert, "unary ~"))
    rule(abs)(unary("abs", abs, "abs()"))


register()


@rule([operator.not_])
def not_(tx: Frame, a: Var) -> Var:
    return ConstVar(not a.truth(tx))


@rule([operator.truth])
def truth(tx: Frame, a: Var) -> Var:
    return ConstVar(a.truth(tx))


@rule([operator.is_])
def is_(tx: Frame, a: Var, b: Var) -> Var:
    return ConstVar(same(tx, a, b))


@rule([operator.is_not])
def is_not(tx: Frame, a: Var, b: Var) -> Var:
    return ConstVar(not same(tx, a, b))


@rule([operator.getitem])
def getitem(tx: Frame, a: Var, key: Var) -> Var:
    if isinstance(a, ConstVar) and find_in_mro(a.python_type(), "__getitem__") is None:
        raise Break("index_unknown", f"{a!r}[{key!r}]")
    return a.get_item(tx, key)


@rule([operator.setitem])
def setitem(tx: Frame, a: Var, key: Var, value: Var) -> Var:
    if isinstance(a, ConstVar | TupleVar):
        raise Break("index_unknown", f"{a!r}[{key!r}] = {value!r}")
    a.set_item(tx, key, value)
    return ConstVar(None)


@rule([operator.delitem])
def delitem(tx: Frame, a: Var, key: Var) -> Var:
    if isinstance(a, ConstVar | TupleVar):
        raise Break("index_unknown", f"del {a!r}[{key!r}]")
    a.del_item(tx, key)
    return ConstVar(None)


@rule([operator.contains])
def contains(tx: Frame, a: Var, item: Var) -> Var:
    if isinstance(a, ConstVar) and type(a.value) is tuple:  # a key of a dict from outside
        a = tx.trace.constant(a.value)
    if isinstance(a, DequeVar):
        return ConstVar(is_among(tx, a.iterate(tx), item))
    if isinstance(a, SequenceVar):  # which a comparison may change
        return ConstVar(any(is_or_equals(tx, other, item) for other in a.items))
    if isinstance(a, RangeVar):
        return ConstVar(item.as_constant() in a.as_constant())
    if isinstance(a, ConstVar):
        if not isinstance(a.as_constant(), str | bytes):
            raise Break("iteration_unknown", repr(a))
        return tx.trace.constant(
            tx.trace.run_real(lambda: item.as_constant() in a.as_constant()))
    if isinstance(a, DictVar | SetVar):
        return tx.trace.call(tx, dict.__contains__, a, item)
    if isinstance(a, ObjectVar | DictViewVar) or a.is_tensor:
        return ConstVar(a.contains(tx, item).truth(tx))
    if tx.trace.attributes.find_special(a.python_type(), "__contains__") is not None:
        return a.contains(tx, item)
    if not is_iterable(tx.trace, a):
        raise Break("iteration_unknown", repr(a))
    return ConstVar(is_among(tx, a.iterate(tx), item))


@rule([divmod])
def divmod_(tx: Frame, a: Var, b: Var) -> Var | None:
    """Of objects with `__divmod__`; constants are folded."""
    if not (isinstance(a, ObjectVar) or isinstance(b, ObjectVar)):
        return None
    found = try_user(tx, a, b, "__divmod__", "__rdivmod__")
    if found is None:
        raise Break("operator_unknown", f"divmod({a!r}, {b!r})")
    return found


@rule([pow], ObjectVar)
def pow_(
    tx: Frame, base: ObjectVar, exponent: Var, mod: Var = ConstVar(None)  # noqa: B008
) -> Var | None:
    method = user_method(tx, base, "__pow__")
    if method is None:
        return None
    if mod.is_constant() and mod.as_constant() is None:
        return tx.trace.call(tx, operator.pow, base, exponent)
    return unless_not_implemented(tx.call(method, [exponent, mod], {}))


@rule([round], ObjectVar)
def round_(tx: Frame, number: ObjectVar, ndigits: Var = ConstVar(None)) -> Var | None:  # noqa: B008
    method = user_method(tx, number, "__round__")
    if method is None:
        return None
    is_none = ndigits.is_constant() and ndigits.as_constant() is None
    return method.call(tx, [] if is_none else [ndigits], {})


@rule([operator.index], ObjectVar)
def index_(tx: Frame, var: ObjectVar) -> Var | None:
    if user_method(tx, var, "__index__") is None:
        return None
    if issubclass(var.python_type(), int):  # which is not asked
        raise Break("call_of_unknown_function", "operator.index of a subclass of int")
    return var.call_special(tx, "__index__")
