"""The rule table: how a call of a known callable acts on Vars.

`@rule(len)` registers a handler `(tx, *args, **kwargs) -> Var | None` for the real callable `len`;
`@rule(operator.add, ListVar, ListVar)` one that only applies when the first positional arguments
are of these Var classes. Handlers of one callable are asked in the order of registration; None
means "not mine". When no handler wants the call, a callable in `FOLDABLE` with constant arguments
is simply called. Keys are the callables themselves; methods of built-in types are keyed by their
descriptors (`list.append`), so `xs.append(v)` and `list.append(xs, v)` meet the same rule.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dynamo.base.errors import Break
from dynamo.symbolic.core import large
from dynamo.symbolic.core.constant import ConstVar, is_nan, part_value
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var

Handler = Callable[..., "Var | None"]
FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: the Var classes of the first arguments, and what to do."""

    kinds: tuple[type[Var] | tuple[type[Var], ...], ...]
    handler: Handler

    def fits(self, args: list[Var]) -> bool:
        if not self.kinds:
            return True
        return len(args) >= len(self.kinds) and all(
            isinstance(arg, kind) for arg, kind in zip(args, self.kinds, strict=False)
        )


RULES: dict[Any, list[Rule]] = {}
FOLDABLE: set[Any] = set()
# Rules for functions of modules that may never be imported, by the module's last name
# and the qualified name.
LATE_RULES: dict[tuple[str, str], Handler] = {}


def rule(
    function: Any, *kinds: type[Var] | tuple[type[Var], ...]
) -> Callable[[Handler], Handler]:
    """Registers a handler for one callable, or for each of a list of callables."""

    def register(handler: Handler) -> Handler:
        for key in function if isinstance(function, list) else [function]:
            RULES.setdefault(key, []).append(Rule(kinds, handler))
        return handler

    return register


def first_rule(
    function: Any, *kinds: type[Var] | tuple[type[Var], ...]
) -> Callable[[Handler], Handler]:
    """The same, asked before the rows that are there already."""

    def register(handler: Handler) -> Handler:
        for key in function if isinstance(function, list) else [function]:
            RULES.setdefault(key, []).insert(0, Rule(kinds, handler))
        return handler

    return register


def late_rule(module: str, name: str) -> Callable[[Handler], Handler]:
    """Registers a handler for a Python function of a module that this import does not load."""

    def register(handler: Handler) -> Handler:
        LATE_RULES[module, name] = handler
        return handler

    return register


def foldable(functions: Iterable[Any]) -> None:
    """Declares pure callables: with constant arguments they are called while tracing."""
    FOLDABLE.update(functions)


def has_rule(function: Any) -> bool:
    """True where `apply` knows the callable."""
    try:
        if function in RULES or function in FOLDABLE:
            return True
    except TypeError:
        return False
    if not isinstance(function, types.FunctionType):
        return False
    module = str(function.__module__).rpartition(".")[2]
    late = LATE_RULES.get((module, function.__qualname__))
    if late is not None:
        rule(function)(late)
    return late is not None


def apply(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var | None:
    """The result of the call, None when no row wants it."""
    if kwargs and has_rule(function) and not takes_names(function, kwargs):
        raise Break("argument_mismatch", f"{_name(function)}: {', '.join(kwargs)}")
    for row in RULES.get(function, ()):
        if row.fits(args):
            awaiting, tx.awaiting = tx.awaiting, False  # `using_results`, for each call of all
            try:
                result = row.handler(tx, *args, **kwargs)
            except TypeError as error:
                if not _is_binding_error(row.handler, args, kwargs):
                    raise
                raise Break("argument_mismatch", f"{_name(function)}: {error}") from error
            finally:
                tx.awaiting = awaiting
            if result is not None:
                return result
    if function in FOLDABLE:
        return fold(tx, function, args, kwargs)
    return None


def fold(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var | None:
    """Calls a pure function on constants; None when an argument is not constant."""
    try:
        values = [plain_value(arg) for arg in args]
        keywords = {name: plain_value(arg) for name, arg in kwargs.items()}
    except Break as reason:
        if reason.code != "not_a_constant":
            raise
        return None
    large.break_where_large(function, [*values, *keywords.values()])
    note_hashes(tx, function, values)
    if function not in UNORDERED:
        for arg in (*args, *kwargs.values()):
            order_sets(tx, arg)
    try:
        result = function(*values, **keywords)
    except Exception as error:
        raise_as(tx.trace, error)
    if is_nan(result):  # it may be one of the arguments
        given = zip([*args, *kwargs.values()], [*values, *keywords.values()], strict=True)
        for var, value in given:
            if value is result and var.python_type() is type(result):
                return var
    return tx.trace.constant(result)


def order_sets(tx: Frame, var: Var) -> None:
    """The order of the sets in a value decides what a function says of it, and is guarded."""
    if isinstance(var, ConstVar):
        return
    if issubclass(var.python_type(), HASHED):
        var.unpack(tx)
    for part in var.children():
        order_sets(tx, part)


def note_hashes(tx: Frame, function: Any, values: list[Any]) -> None:
    """Another process may get another answer: hashes of texts are random, and so is the order in
    which a set is written."""
    if function is hash:
        tx.trace.state(Unguarded).ordered(values)
    for value in values:
        if type(value) in HASHED and len(value) > 1 and function not in UNORDERED:
            tx.trace.state(Unguarded).ordered(value)
        elif type(value) in (tuple, list, dict) and function in WRITERS:
            tx.trace.state(Unguarded).ordered(parts_of_sets(value))


def parts_of_sets(value: Any) -> list[Any]:
    """The items of all sets in a value."""
    if type(value) in HASHED:
        return [*value, *(part for item in value for part in parts_of_sets(item))]
    items = [*value, *value.values()] if type(value) is dict else value
    return [part for item in items for part in parts_of_sets(item)] if (
        isinstance(value, tuple | list | dict)) else []


HASHED = (set, frozenset)
WRITERS = (repr, str, format, ascii, str.format, str.__mod__, str.__format__, tuple.__repr__,
           tuple.__str__, tuple.__hash__, operator.mod)
# What tells of a set nothing that depends on its order.
UNORDERED = (len, bool, operator.contains, operator.truth, operator.not_, operator.eq, operator.ne,
             operator.le, operator.lt, operator.ge, operator.gt, set.__len__, frozenset.__len__)


def plain_value(var: Var) -> Any:
    """The value of a constant, or a copy of a list or dict of plain values; Break for all else."""
    items = getattr(var, "items", None)
    if var.is_constant():
        return var.as_constant()
    if isinstance(items, list) and var.python_type() is list:
        return [plain_part(item) for item in items]
    entries = getattr(var, "entries", None)
    if isinstance(entries, dict) and var.python_type() is dict:
        return {plain_part(key): plain_part(value) for key, value in entries.values()}
    return var.as_constant()


def plain_part(var: Var) -> Any:
    """The same of what lies in a list or dict."""
    return part_value(var) if isinstance(var, ConstVar) else plain_value(var)


@functools.lru_cache(1000)
def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def takes_names(function: Any, names: Iterable[str]) -> bool:
    """False where a function has no parameters of these names: those of a row may have."""
    if type(function) not in FUNCTIONS:
        return True
    try:
        parameters = _parameters(function)
    except ValueError:  # it does not tell
        return function not in (iter, next, getattr, dir, vars)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return True
    return all(
        name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
        for name in names
    )


def _is_binding_error(handler: Handler, args: list[Var], kwargs: dict[str, Var]) -> bool:
    try:
        inspect.signature(handler).bind(None, *args, **kwargs)
    except TypeError:
        return True
    return False


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


NONE = ConstVar(None)


def raise_as(trace: Evaluation, error: Exception) -> NoReturn:
    """Raises in the traced program what a real call has raised."""
    if vars(error):  # what its `__init__` has set, as that of re.error does
        raise Break("exception_state", type(error).__qualname__) from error
    trace.raise_exception(type(error), *error.args)
