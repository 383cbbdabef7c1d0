"""Parts of the standard library that are C code, or that only matter outside of the program.

Regular expressions on constants are evaluated while tracing. What is printed or logged is an
effect: it appears after the graph that it was waiting for, in program order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import logging
import os
import re
import reprlib
import sys
import sysconfig
import threading
import types
import warnings
from typing import Any

import torch

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, ItemSource, ObjectSource
from dynamo.symbolic.core.constant import TORCH_VALUE_TYPES, VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, module_of
from dynamo.symbolic.core.table import foldable, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.exceptions import handled_outside, traceback_of
from dynamo.symbolic.python.handlers import sees_errors
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.python_modules import LIBRARIES
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.shapes.symbolic_text import is_symbolic_text

METHODS = {
    re.Pattern: """match fullmatch search split findall sub subn __eq__ __hash__ __repr__""",
    types.UnionType: """__eq__ __hash__ __repr__""",
    types.GenericAlias: """__eq__ __hash__ __repr__""",
    re.Match: """group groups groupdict start end span expand __getitem__ __repr__""",
}
foldable(vars(kind)[name] for kind, names in METHODS.items() for name in names.split()
         if name in vars(kind))
PATTERNS = [re.match, re.fullmatch, re.search, re.split, re.findall, re.sub, re.subn, re.compile]
foldable([*PATTERNS, re.escape])
# Flags with which a pattern is printed, or warned of.
TELLING = re.DEBUG | getattr(re, "TEMPLATE", 0)
# The handlers of errors in texts that are not the program's.
ERRORS = frozenset({"strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace",
                    "namereplace", "surrogateescape", "surrogatepass"})

foldable([sys.intern])
# What `os.path` takes from C, from Python 3.12 and 3.13 on.
PATHS = vars(sys.modules[os.name])
foldable(PATHS[name] for name in ("_path_normpath", "_path_splitroot", "_path_splitroot_ex")
         if name in PATHS)
COMPILE_PATTERN: Any = re._compiler.compile  # type: ignore[attr-defined]
FILES = (io.TextIOWrapper, io.StringIO)
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))

LOGGING = [getattr(logging.Logger, name)
           for name in ("debug", "info", "warning", "error", "critical", "log")]


@functools.lru_cache(512)
def is_silent(pattern: str | bytes, flags: int) -> bool:
    """True where compiling the pattern tells nothing; whether it is right is not looked at."""
    if flags & TELLING:
        return False
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):
            COMPILE_PATTERN(pattern, flags)  # does not remember it
    return not warned


def _register_pattern(function: Any) -> None:
    place = list(inspect.signature(function).parameters).index("flags")

    @rule(function)
    def check(tx: Frame, pattern: Var, /, *args: Var, **kwargs: Var) -> None:
        flags = kwargs.get("flags", (pattern, *args)[place] if len(args) >= place else ConstVar(0))
        if not (pattern.is_constant() and flags.is_constant()):
            return
        text, number = pattern.as_constant(), flags.as_constant()
        if isinstance(text, str | bytes) and isinstance(number, int):
            if not is_silent(text, int(number)):
                raise Break("call_of_unknown_function", f"a warning of the pattern {text!r}")


def _register_coding(function: Any, place: int) -> None:
    @rule(function)
    def check(tx: Frame, /, *args: Var, **kwargs: Var) -> None:
        errors = kwargs.get("errors", args[place] if len(args) > place else None)
        if errors is not None and errors.is_constant() and errors.as_constant() not in ERRORS:
            raise Break("call_of_unknown_function", f"the error handler {errors!r}")


for _function in PATTERNS:
    _register_pattern(_function)
for _coding in (str.encode, bytes.decode, str, bytes):
    _register_coding(_coding, 2)


def plain_values(args: tuple[Var, ...]) -> list[Any]:
    """The values of numbers, strings and the like; Break where there is anything else."""
    values = [arg.as_constant() for arg in args if arg.is_constant()]
    if len(values) < len(args) or not all(map(is_plain, values)):
        raise Break("call_of_unknown_function", f"output of {args}")
    return values


def is_plain(value: Any) -> bool:
    """True for values whose text is always the same."""
    if isinstance(value, tuple) and type(value) in (tuple, torch.Size):
        return all(map(is_plain, value))
    return type(value) in (*VALUE_TYPES, *TORCH_VALUE_TYPES)


def is_seen(tx: Frame, logger: logging.Logger | None) -> bool:
    """True where a handler that the program may read gets what is logged, or the trace has changed
    who does: a record that is made behind the graph would be too late."""
    written = {id(target) for target in tx.trace.effects.targets_since({}) if target is not None}
    while logger is not None:
        parts: list[Any] = [logger, logger.handlers, logger.filters, *logger.filters]
        for handler in logger.handlers:
            parts += [handler, handler.filters, *handler.filters, handler.formatter]
        if any(id(tx.trace.objects.var_of(part)) in written for part in parts) or any(
            not only_writes(type(part)) for part in (logger, *logger.handlers, *logger.filters)
        ):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def only_writes(kind: type) -> bool:
    """True for loggers, filters and handlers of streams of `logging`, and those of libraries."""
    module = sys.modules.get(module_of(kind))
    return module is logging or str(getattr(module, "__file__", "")).startswith(INSTALLED)


def _register_logging(function: Any) -> None:
    @rule(function)
    def log(tx: Frame, logger: Var, /, *args: Var, **kwargs: Var) -> Var:
        """The record is made after the graph; what it says is known already."""
        if not isinstance(logger, ObjectVar) or logger.real is None or not set(kwargs) <= {"extra"}:
            raise Break("call_of_unknown_function", f"logging by {logger!r}")
        if is_seen(tx, logger.real):
            raise Break("call_of_unknown_function", f"logging by {logger!r}, which is watched")
        values = [output_value(arg) for arg in args]
        keywords = {name: plain_values((arg,))[0] for name, arg in kwargs.items()}
        tx.trace.guard("ID", logger.source, logger.real)
        call = functools.partial(function, logger.real, **keywords)
        tx.trace.effects.output(hook.Disabled(call), *values)
        return ConstVar(None)


def _register_root_logging(function: Any) -> None:
    @rule(function)
    def log(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        """Like the root logger's method, which gets a handler first where it has none."""
        if not set(kwargs) <= {"extra"}:
            raise Break("call_of_unknown_function", f"{function.__name__} of logging, {kwargs}")
        if is_seen(tx, logging.root):
            raise Break("call_of_unknown_function", "logging by the root logger, which is watched")
        values = [output_value(arg) for arg in args]
        keywords = {name: plain_values((arg,))[0] for name, arg in kwargs.items()}
        tx.trace.effects.output(hook.Disabled(functools.partial(function, **keywords)), *values)
        return ConstVar(None)


for _function in LOGGING:
    _register_logging(_function)
    _register_root_logging(getattr(logging, _function.__name__))


@rule(sys.exc_info)
def exc_info(tx: Frame) -> Var | None:
    """Class, instance and traceback of the exception that is being handled."""
    if tx.exception is None and handled_outside(tx.trace):
        return None
    if tx.exception is None:
        return TupleVar([ConstVar(None)] * 3)
    kind = tx.trace.wrap(tx.exception.python_type(), None)
    return TupleVar([kind, tx.exception, traceback_of(tx.exception)])


@rule(sys.exception)
def exception(tx: Frame) -> Var | None:
    return tx.exception or (None if handled_outside(tx.trace) else ConstVar(None))


def _is_of_library(finder: Any) -> bool:
    """Whether what finds modules is Python's own, or an installed package's."""
    owner = finder if isinstance(finder, type) else type(finder)
    module = sys.modules.get(owner.__module__)
    file = getattr(module, "__file__", None)
    return file is None or file.startswith(LIBRARIES)


@rule(importlib.util.find_spec)
def find_spec(tx: Frame, name: Var, package: Var | None = None) -> Var | None:
    """Whether a module can be imported: as while tracing, as long as it is neither imported nor
    forgotten and the places to look in are the same."""
    if not name.is_constant() or (package is not None and not is_none(package)):
        return None
    text = name.as_constant()
    if type(text) is not str or "." in text:  # imports the package around it
        return None
    if not all(map(_is_of_library, sys.meta_path)):  # may have effects, or change its mind
        return None
    modules = AttrSource(ObjectSource(sys, "sys"), "modules")
    module = sys.modules.get(text)
    if module is not None:
        place = ItemSource(modules, text)
        tx.trace.guard("ID", place, module)
        if getattr(module, "__spec__", None) is None:
            return None
        return tx.trace.wrap(module.__spec__, AttrSource(place, "__spec__"))
    tx.trace.guard("DICT_LACKS", modules, text)
    tx.trace.guard("CONST", AttrSource(ObjectSource(sys, "sys"), "path"), list(sys.path))
    tx.trace.guard("LENGTH", AttrSource(ObjectSource(sys, "sys"), "meta_path"), len(sys.meta_path))
    found = tx.trace.run_real(functools.partial(importlib.util.find_spec, text))
    return tx.trace.wrap(found, None)


@rule(os.fspath)
def fspath(tx: Frame, path: Var) -> Var | None:
    if path.is_constant() and isinstance(path.as_constant(), str | bytes):
        return path
    if isinstance(path, ObjectVar) and find_in_mro(path.python_type(), "__fspath__") is not None:
        return path.call_special(tx, "__fspath__")
    return None


def warn_at(
    module_globals: dict[str, Any], message: str, category: type[Warning], filename: str, line: int
) -> None:
    """The warning of a line of the program, remembered where `warnings.warn` remembers it."""
    registry = module_globals.setdefault("__warningregistry__", {})
    module = module_globals.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


SHOW = "_showwarnmsg"
ORIGINAL_SHOW = vars(warnings)[SHOW]


def filters_are_known(tx: Frame) -> bool:
    """False where the program has put another module in place of `warnings`, or has changed in the
    trace what is done with a warning."""
    effects, names = tx.trace.effects, vars(warnings)
    if sys.modules.get("warnings") is not warnings or names.get(SHOW) is not ORIGINAL_SHOW:
        return False
    if any(part not in names or effects.written_global(names, part)[0] for part in READ_PARTS):
        return False
    known = tx.trace.objects.var_of(warnings.filters)
    return known is None or all(known is not target for target in effects.targets_since({}))


READ_PARTS = ("filters", "showwarning", SHOW, "_showwarnmsg_impl")
RECURSION = (reprlib.__file__, dataclasses.__file__)
RLOCK = type(threading.RLock())


@rule(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(tx: Frame) -> Var:
    tx.trace.effects.output(hook.Disabled(warnings._filters_mutated))  # type: ignore[attr-defined]
    return ConstVar(None)


def in_main_thread() -> bool:
    """Whether this is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


@rule(threading.get_ident)
def thread_number(tx: Frame) -> Var | None:
    """Of the main thread; others come and go, and each would have its own graphs. Any number does
    in the key with which a `repr` looks out for recursion, as nobody else sees that."""
    if tx.code.co_filename in RECURSION:
        return ConstVar(0)
    is_main = in_main_thread()
    tx.trace.guard("CONST", CallSource(ObjectSource(in_main_thread, "in_main_thread")), is_main)
    if not is_main:
        return None
    number = threading.get_ident()  # of another process it is another one
    place = CallSource(ObjectSource(threading.get_ident, "threading.get_ident"))
    tx.trace.guard("CONST", place, number)
    return ConstVar(number)


def _register_lock(name: str) -> None:
    function = getattr(RLOCK, name)

    @rule(function)
    def handle(tx: Frame, lock: Var, *args: Var) -> Var | None:
        """A lock that exists is taken and given back behind the graph, in program order."""
        if not isinstance(lock, ObjectVar) or lock.real is None or (args and name != "__exit__"):
            return None
        takes = name in ("acquire", "__enter__")
        taken = tx.trace.effects.taken
        if not takes and not taken[id(lock.real)]:  # it may be an error, which is raised here
            raise Break("call_of_unknown_function", f"{name} of a lock that is not taken here")
        taken[id(lock.real)] += 1 if takes else -1
        tx.trace.guard("ID", lock.source, lock.real)
        values: list[Any] = [None, None, None] if name == "__exit__" else []
        tx.trace.effects.output(hook.Disabled(functools.partial(function, lock.real, *values)))
        return ConstVar(True) if takes else ConstVar(None)


for _name in ("acquire", "release", "__enter__", "__exit__"):
    _register_lock(_name)


@rule(warnings.warn)
def warn(
    tx: Frame, message: Var, category: Var = ConstVar(None), stacklevel: Var = ConstVar(1)  # noqa: B008
) -> Var | None:
    """Warns after the graph; where warnings are errors, at once."""
    text, level = plain_values((message, stacklevel))
    kind = category.cls if isinstance(category, ClassVar) else category.as_constant()
    kind = UserWarning if kind is None else kind
    if not (isinstance(kind, type) and issubclass(kind, Warning)):
        return None
    frames = tx.trace.frames
    level = max(level, 1)
    if type(text) is not str or type(level) is not int or level > len(frames):
        return None
    if not filters_are_known(tx):
        return None
    frame = frames[-level]
    place = frame.user_line()
    if any(row[0] == "error" and issubclass(kind, row[2]) for row in warnings.filters):
        return None
    if warnings.showwarning is not warnings._showwarning_orig:  # type: ignore[attr-defined]
        return None
    collected = getattr(warnings._showwarnmsg_impl, "__self__", None)  # type: ignore[attr-defined]
    if collected is not None:  # the list of `catch_warnings(record=True)`
        if tx.trace.objects.var_of(collected) is not None:
            return None
        tx.trace.objects.collecting[id(collected)] = collected
    call = functools.partial(warn_at, frame.globals, text, kind, place.filename, place.lineno)
    tx.trace.effects.output(hook.Disabled(call))
    return ConstVar(None)


def is_none(var: Var) -> bool:
    return var.is_constant() and var.as_constant() is None


def real_file(tx: Frame, var: Var) -> Any:
    """A file of Python's own that existed before, None for all else."""
    real = getattr(var, "real", None) or getattr(var, "value", None)
    return real if var.source is not None and isinstance(real, FILES) else None


def output_value(var: Var) -> Any:
    """What output shows: a plain value, or the number or text that is open."""
    return var if is_symbolic(var) or is_symbolic_text(var) else plain_values((var,))[0]


def printed(tx: Frame, var: Var) -> Any:
    """What `print` shows of a value, which is known now; a tensor's is not."""
    if not (is_symbolic(var) or is_symbolic_text(var)):
        closed = var.is_constant() and not any(map(is_symbolic, var.children()))
        if closed and is_plain(var.as_constant()):
            return var.as_constant()
        var = tx.trace.call(tx, str, var)
    return output_value(var)


@rule(print)
def print_(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    """Printed after the graph; at once where code of the program sees that this fails."""
    if any(map(sees_errors, tx.trace.frames)):
        raise Break("print_in_try")
    file = kwargs.pop("file", ConstVar(None))
    target = None if is_none(file) else real_file(tx, file)
    if target is None and not is_none(file):
        return None
    _, stored = tx.trace.effects.written_global(vars(sys), "stdout")
    kind = type(sys.stdout) if stored is None else stored.python_type()
    if target is None and find_in_mro(kind, "write") is None:
        raise Break("call_of_unknown_function", f"print to {kind.__qualname__}")
    values = [printed(tx, arg) for arg in args]
    keywords = {name: plain_values((arg,))[0] for name, arg in kwargs.items()}
    tx.trace.run_real(lambda: print(file=io.StringIO(), **keywords))  # a wrong one fails here
    if target is not None:
        tx.trace.guard("ID", file.source, target)
        keywords["file"] = target
    tx.trace.effects.output(hook.Disabled(functools.partial(print, **keywords)), *values)
    return ConstVar(None)
