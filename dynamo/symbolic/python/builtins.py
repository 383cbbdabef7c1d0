"""Built-in functions and the constructors of built-in types; those about classes and attributes are
in `builtin_attributes`."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynamo.base.errors import Break, SkipFrame
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import is_own_method, name_in_c
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dict_views import MappingProxyVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, MethodVar, keywords_of
from dynamo.symbolic.python.iteration import each_item
from dynamo.symbolic.python.lists import ListVar, SequenceVar, SizeVar, TupleVar, is_structseq
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.partials import PartialVar
from dynamo.symbolic.python.ranges import RangeVar, SliceVar
from dynamo.symbolic.python.sameness import guarded_type
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import has_keys, is_iterable, unpack_for_tuple, unpack_sized
from dynamo.symbolic.shapes import numbers, unbacked

READS_FRAME = "it reads its own frame"


@rule([len])
def len_(tx: Frame, var: Var) -> Var:
    if not isinstance(var, SequenceVar | RangeVar | SetVar) and var.is_constant():
        return tx.trace.constant(tx.trace.run_real(lambda: len(var.as_constant())))
    return var.length(tx)


@rule([bool])
def bool_(tx: Frame, var: Var = ConstVar(False)) -> Var:  # noqa: B008
    return ConstVar(var.truth(tx))


def to_number(tx: Frame, kind: type, args: tuple[Var, ...]) -> Var | None:
    """`int(x)` or `float(x)` of a number that is symbolic or unknown."""
    if len(args) != 1:
        return None
    return numbers.convert(tx.trace, kind, args[0]) or unbacked.convert(tx.trace, kind, args[0])


@rule([int])
def int_of_object(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    if kwargs:
        return None
    found = to_number(tx, int, args)
    return found if found is not None else special_number(tx, args, ("__int__", "__index__"))


@rule([float])
def float_of_object(tx: Frame, *args: Var) -> Var | None:
    found = to_number(tx, float, args)
    if found is None:
        found = special_number(tx, args, ("__float__", "__index__"))
    if found is None or issubclass(found.python_type(), float):
        return found
    return tx.trace.call(tx, float, found)


def number_rule(function: Any, make: Callable[..., Var | None], name: str) -> None:
    """A function of numbers; of constants it is folded."""

    @rule(function)
    def handle(tx: Frame, *args: Var) -> Var | None:
        return make(tx.trace, name, args[0]) if len(args) == 1 else None


for _name in numbers.CURVES:
    number_rule(getattr(math, _name), numbers.curve, _name)
for _name in ("floor", "ceil", "trunc"):
    number_rule(getattr(math, _name), numbers.rounded, _name)
for _name in ("isfinite", "isnan", "isinf"):
    number_rule(getattr(math, _name), numbers.is_ordinary, _name)


@rule([math.pow])
def pow_(tx: Frame, base: Var, exponent: Var) -> Var | None:
    return numbers.power_of_floats(tx.trace, base, exponent)


@rule([math.fabs])
def fabs(tx: Frame, number: Var) -> Var | None:
    if not numbers.is_symbolic(number):
        return None
    return tx.trace.call(tx, float, tx.trace.call(tx, abs, number))


@rule([round])
def round_(tx: Frame, number: Var, ndigits: Var | None = None) -> Var | None:
    return numbers.rounded(tx.trace, "round", number) if ndigits is None else None


@rule([divmod])
def divmod_(tx: Frame, a: Var, b: Var) -> Var | None:
    if not (numbers.is_symbolic(a) or numbers.is_symbolic(b)):
        return None
    call = tx.trace.call
    return TupleVar([call(tx, operator.floordiv, a, b), call(tx, operator.mod, a, b)])


@rule([torch.Size.numel], SizeVar)
def size_numel(tx: Frame, size: SizeVar) -> Var:
    number = multiplied(tx, size, ConstVar(1))
    return number if number.python_type() is int else ConstVar(int(number.as_constant()))


@rule([math.prod])
def product(tx: Frame, items: Var, *, start: Var = ConstVar(1)) -> Var:  # noqa: B008
    return multiplied(tx, items, start)


def multiplied(tx: Frame, items: Var, start: Var) -> Var:
    for item in each_item(tx, items):
        start = tx.trace.call(tx, operator.mul, start, item)
    return start


def special_number(tx: Frame, args: tuple[Var, ...], names: tuple[str, ...]) -> Var | None:
    if len(args) == 1 and isinstance(args[0], ObjectVar) and not args[0].is_constant():
        for name in names:
            if args[0].has_special(tx, name):
                return args[0].call_special(tx, name)
    return None


@rule([format])
def check_spec(tx: Frame, var: Var, spec: Var = ConstVar("")) -> None:  # noqa: B008
    kind = spec.python_type()
    if not issubclass(kind, str):
        shown = "None" if kind is type(None) else name_in_c(kind)
        tx.trace.raise_exception(TypeError, f"format() argument 2 must be str, not {shown}")


@rule([str, repr, format])
def text(tx: Frame, var: Var = ConstVar(""), *rest: Var) -> Var | None:  # noqa: B008
    if isinstance(var, ObjectVar) and is_structseq(var.python_type()):
        raise Break("not_a_constant", f"the text of {var!r}")  # C code shows its names
    return None


@rule([str])
def str_of_class(tx: Frame, *args: Var) -> Var | None:
    if len(args) == 1 and isinstance(args[0], ClassVar):
        find_special, kind = tx.trace.attributes.find_special, type(args[0].cls)
        plain = find_special(kind, "__str__") is object.__str__
        if plain and find_special(kind, "__repr__") is type.__repr__:
            return ConstVar(str(args[0].cls))
    return None


@rule([str])
def str_(tx: Frame, *args: Var) -> Var | None:
    if len(args) == 1 and isinstance(args[0], ObjectVar) and not args[0].is_constant():
        for name in ("__str__", "__repr__"):
            found = tx.trace.attributes.find_special(args[0].python_type(), name)
            if is_own_method(found):
                return args[0].call_special(tx, name)
            if not isinstance(found, types.WrapperDescriptorType):
                return None
    return None


@rule([repr])
def repr_(tx: Frame, var: Var) -> Var | None:
    if isinstance(var, ObjectVar) and not var.is_constant():
        method = tx.trace.attributes.find_special(var.python_type(), "__repr__")
        if is_own_method(method):
            return var.call_special(tx, "__repr__")
    if isinstance(var, ClassVar) and type(var.cls) is type:
        return ConstVar(repr(var.cls))
    return None


@rule([format])
def format_(tx: Frame, var: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    if not var.is_constant():
        method = tx.trace.attributes.find_special(var.python_type(), "__format__")
        if is_own_method(method):
            return var.call_special(tx, "__format__", spec) if isinstance(var, ObjectVar) else None
        if isinstance(var, ObjectVar) and method is None:
            return None
        if spec.as_constant() == "":
            return tx.trace.call(tx, str, var)
    return None


@rule([input, open, compile, globals, id, breakpoint, __import__])
def not_modelled(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return None


@rule([locals, eval, exec, sys._getframe, inspect.currentframe])
def frame_reader(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    """What looks at the caller's frame must find the real one."""
    raise SkipFrame(READS_FRAME)


@rule([dir])
def dir_(tx: Frame, *args: Var) -> Var | None:
    if not args:
        raise SkipFrame(READS_FRAME)
    return None


@rule([vars])
def vars_(tx: Frame, *args: Var) -> Var:
    if not args:
        raise SkipFrame(READS_FRAME)
    (var,) = args
    try:
        return var.get_attr(tx, "__dict__")
    except ObservedException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
    tx.trace.raise_exception(TypeError, "vars() argument must have __dict__ attribute")


@rule([hash])
def hash_(tx: Frame, var: Var) -> Var | None:
    if isinstance(var, ObjectVar):
        method = tx.trace.attributes.find_special(var.python_type(), "__hash__")
        if is_own_method(method):
            return var.call_special(tx, "__hash__")
    if var.is_constant() and isinstance(var.as_constant(), int | float | bool | str | None | bytes):
        tx.trace.state(Unguarded).ordered([var.as_constant()])
        return tx.trace.constant(hash(var.as_constant()))
    if var.is_constant():
        tx.trace.run_real(lambda: hash(var.as_constant()))
    return None


@rule([callable])
def callable_(tx: Frame, var: Var) -> Var:
    kind = guarded_type(tx, var)
    return ConstVar(tx.trace.attributes.has_special(kind, "__call__"))


@rule([functools.partial])
def partial_(tx: Frame, function: Var, /, *args: Var, **kwargs: Var) -> Var:
    if not tx.trace.call(tx, callable, function).truth(tx):
        tx.trace.raise_exception(TypeError, "the first argument must be callable")
    if isinstance(function, PartialVar) and not function.has_dict:  # one partial of all arguments
        args = (*function.args.unpack(tx), *args)
        kwargs = {**keywords_of(tx, function.keywords), **kwargs}
        function = function.function
    return PartialVar(function, tx.trace.make.tuple(list(args)), tx.trace.make.dict(kwargs))


# -- containers from iterables ---------------------------------------------------------------------


@rule([list])
def list_(tx: Frame, *items: Var) -> Var:
    return ListVar(unpack_sized(tx, items[0]) if items else [])


@rule([tuple])
def tuple_(tx: Frame, *items: Var) -> Var:
    if items and type(items[0]) in (TupleVar, ConstVar) and items[0].python_type() is tuple:
        return items[0]
    return TupleVar(unpack_for_tuple(tx, items[0]) if items else [])


@rule([torch.Size])
def size_(tx: Frame, *items: Var) -> Var:
    return SizeVar([size_item(tx, item) for item in items[0].unpack(tx)] if items else [])


def size_item(tx: Frame, item: Var) -> Var:
    """An item of a torch.Size is an int: of what is not one, torch asks for its index."""
    if item.python_type() is int:
        return item
    if item.is_tensor:
        return tx.trace.call(tx, torch.Tensor.__index__, item)
    raise Break("call_of_unknown_function", f"torch.Size with an item like {item!r}")


@rule([slice])
def slice_(
    tx: Frame, first: Var, stop: Var | None = None, step: Var = NONE, /
) -> Var:
    if stop is None:
        return SliceVar(NONE, first, NONE)
    return SliceVar(first, stop, step)


def pairs_of(tx: Frame, source: Var, ordered: bool = False) -> Iterator[tuple[Var, Var]]:
    """Keys and values, as dict(...) and update(...) read them, one pair after the other: what gives
    them may look at what was done with those before. ordered: as an OrderedDict reads them, which
    has words of its own for what is no pair."""
    if isinstance(source, ObjectVar) and source.content is not None:
        cls = source.python_type()  # a dict is copied whatever its methods are, but for `__iter__`
        find_special = tx.trace.attributes.find_special
        reads = [find_special(cls, name) for name in ("__iter__", "keys", "__getitem__")]
        methods = [collections.OrderedDict.__iter__, collections.OrderedDict.keys, dict.__getitem__]
        if reads[0] is dict.__iter__ or reads == methods:
            source = source.content
    if isinstance(source, DictVar):
        yield from list(source.entries.values())
        return
    if has_keys(tx, source):
        keys = source.call_method(tx, "keys", [], {})
        for key in each_item(tx, keys) if ordered else keys.unpack(tx):
            yield key, source.get_item(tx, key)
        return
    for item in each_item(tx, source):
        if not is_iterable(tx.trace, item):
            raise Break("argument_mismatch", f"{item!r} is no pair")
        try:
            if isinstance(item, ObjectVar) and not ordered:
                parts = tx.trace.call(tx, list, item.iterate(tx)).unpack(tx)
            else:
                parts = item.unpack(tx)
        except ObservedException as error:  # Python says another thing about a TypeError
            if not issubclass(error.value.python_type(), TypeError):
                raise
            raise Break("argument_mismatch", f"{item!r} is no pair") from None
        if len(parts) != 2:
            raise Break("argument_mismatch", f"{item!r} is no pair")
        yield parts[0], parts[1]


@rule([dict])
def dict_(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    if len(args) > 1:
        tx.trace.raise_exception(
            TypeError, f"dict expected at most 1 argument, got {len(args)}")
    pairs = pairs_of(tx, args[0]) if args else ()
    named = [(ConstVar(name), value) for name, value in kwargs.items()]
    return DictVar.from_pairs(tx, itertools.chain(pairs, named))


@rule([types.MappingProxyType])
def mapping_proxy(tx: Frame, mapping: Var) -> Var:
    return MappingProxyVar(mapping)


@rule([inspect.signature])
def signature(tx: Frame, /, function: Var, **kwargs: Var) -> Var | None:
    """Signatures of existing functions are read while tracing; the function is guarded."""
    if kwargs:
        raise Break("call_of_unknown_function", "inspect.signature with keywords")
    bound = isinstance(function, MethodVar)
    inner = function.function if isinstance(function, MethodVar) else function
    if not isinstance(inner, FunctionVar) or inner.real is None or inner.written:
        raise Break("call_of_unknown_function", f"inspect.signature({function!r})")
    inner.guard_signature(tx.trace)
    real = types.MethodType(inner.real, object()) if bound else inner.real
    found = tx.trace.run_real(lambda: inspect.signature(real))
    tx.trace.state(Unguarded).signatures.append((found, inner.real, bound))
    return tx.trace.wrap(found, None)
