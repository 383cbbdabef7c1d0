"""Calls of Python functions inside of a trace: binding of arguments, child frames, generators."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base import strictness
from dynamo.base.decisions import decisions
from dynamo.base.errors import Break, RestartTrace
from dynamo.base.user_lines import TORCH
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.lookup import builtins_of
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.breaks import is_standard_library
from dynamo.symbolic.machine.protocols import RunningFrame
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.exceptions import stopped
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.tensors.tensor import TensorVar

if TYPE_CHECKING:
    from dynamo.symbolic.python.functions import FunctionVar

OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep
# Python functions that are traced in place of C functions.
POLYFILLS = frozenset(
    os.path.join(OWN_FOLDER, "symbolic", *name.split("/")) + ".py"
    for name in """
        python/polyfills python/polyfill_iterators python/polyfill_heaps python/polyfill_checks
        python/polyfill_patterns
        tensors/autograd_functions tensors/optimizer_steps tensors/fused_steps tensors/loops
        tensors/polyfill_hooks
        tensors/averaging tensors/flex_polyfills tensors/nested_polyfills tensors/checkpointing
        tensors/masked tensors/result_dtypes
    """.split()
) | {strictness.__file__}
# Programs that are compiled like those of users: those of the backends' check, int8 layers.
PROGRAMS = frozenset(os.path.join(OWN_FOLDER, *name) for name in (
    ("backends", "programs.py"), ("graphs", "quantize.py"), ("graphs", "int8.py")))
TRACED = POLYFILLS | PROGRAMS
# Functions of ours that answer differently in traced code.
KNOWN_RESULTS = {
    "is_compiling": True, "cudagraph_mark_step_begin": None, "mark_static_address": None,
}
CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")
# Marks say how sizes of arguments are to be taken when a frame is captured. One that is being
# captured has its sizes, and no program reads them: in it they say nothing.
MARKS = frozenset({"mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked"})
MARK_FILES = (os.path.join("torch", "_dynamo", "decorators.py"),
              os.path.join("dynamo", "user_decisions.py"))
GRAPH_BREAK_FILE = os.path.join("torch", "_dynamo", "decorators.py")
SEQUENTIAL = "checkpoint_sequential"  # it only calls `checkpoint`
# Modules that spread the work of the one inside them: they talk to other processes around its call.
SPREADING = frozenset(
    os.path.join(TORCH, *name.split("/"))
    for name in ("nn/parallel/distributed.py", "nn/parallel/data_parallel.py",
                 "distributed/fsdp/fully_sharded_data_parallel.py")
)
DEEPEST = 120  # calls inside of each other that one trace takes in; chosen, not measured
DISABLED = "__dynamo_disabled__"
# It reads a number out of a tensor every few lines.
LEFT_TO_PYTHON = inspect.unwrap(torch.optim.LBFGS.step).__code__
RESUME_OF_YIELD_FROM = 2


def inline_function(
    tx: RunningFrame, function: FunctionVar, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """Runs a function in a child frame; for a generator function gives the generator."""
    code = function.code
    if code.co_filename.startswith(OWN_FOLDER) and code.co_name in KNOWN_RESULTS:
        return ConstVar(KNOWN_RESULTS[code.co_name])
    if code.co_name in MARKS and code.co_filename.endswith(MARK_FILES) and is_marked(*args):
        return ConstVar(None)
    refuse(tx, function, *args, *kwargs.values())
    names = bind(tx, function, args, kwargs)
    closure = dict(zip(code.co_freevars, function.closure(tx), strict=True))
    frame = tx.child(function, names, closure)
    if not frame.is_generator:
        return frame.run()
    frame.arguments = (args, kwargs)
    frame.created_at = tx.step_at_start
    while frame.decoded.instructions[frame.ip].op != "RETURN_GENERATOR":
        frame.step()
    frame.ip += 1
    return GeneratorVar(frame)


def is_marked(tensor: Var | None = None, *rest: Var) -> bool:
    """Whether arguments are a tensor and numbers, which a mark takes without an error."""
    return isinstance(tensor, TensorVar) and bool(rest)


def refuse(tx: RunningFrame, function: FunctionVar, *args: Var) -> None:
    """Breaks for functions that must not be traced; `graph_break` may say why it is called."""
    code = function.code
    if code.co_filename.startswith(OWN_FOLDER) and code.co_filename not in TRACED:
        if code.co_name == "graph_break":
            raise Break("explicit_break", message(args))
        raise Break("call_disabled", function.qualname)
    if code.co_filename.endswith(GRAPH_BREAK_FILE) and code.co_name == "graph_break":
        if not tx.code.co_filename.startswith(TORCH):  # torch's own are for its own compiler
            raise Break("explicit_break", message(args))
    real: Any = function.real
    if real is not None and real.__dict__.get(DISABLED):
        raise Break("call_disabled", function.qualname)
    if real is not None and real.__builtins__ is not builtins_of(function.globals):
        raise Break("call_of_unknown_function", f"{function.qualname}, which has other built-ins")
    if decisions.has("skipped", code) or is_left_to_python(function.real):
        raise Break("call_disabled", function.qualname)
    if code.co_filename.endswith(CHECKPOINT_FILE) and not code.co_qualname.startswith(SEQUENTIAL):
        raise Break("call_disabled", function.qualname)
    if spreads_work(code):
        raise Break("spreading_module", function.qualname)
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Break("async_code", function.qualname)
    if is_too_deep(tx, code):
        raise Break("inline_too_deep", function.qualname)


def is_left_to_python(function: Any) -> bool:
    """True for the step of LBFGS and what wraps it: the closure that it calls is compiled."""
    named = getattr(function, "__name__", "") == LEFT_TO_PYTHON.co_name
    return named and getattr(inspect.unwrap(function), "__code__", None) is LEFT_TO_PYTHON


def spreads_work(code: CodeType) -> bool:
    """True for the `forward` of `DistributedDataParallel` and its relatives."""
    return code.co_filename in SPREADING and code.co_name == "forward"


def message(args: tuple[Var, ...]) -> str:
    """What the program says to `graph_break`."""
    is_text = args and args[0].python_type() is str and args[0].is_constant()
    return str(args[0].as_constant()) if is_text else ""


def is_too_deep(tx: RunningFrame, code: CodeType) -> bool:
    """True where a call is not to be inlined because of those that it is inside of.

    A function that is found to recurse beyond what several traces can take in at once calls itself
    from now on: else each of its levels would be traced together with all those below.
    """
    codes, frames = tx.trace.context.codes, tx.trace.frames
    if codes.is_endless(code):
        return any(frame.code is code for frame in frames)
    if len(frames) <= DEEPEST:
        return False
    callers = [code, *(frame.code for frame in reversed(frames))]
    own = next((item for item in callers if is_users(item)), None)
    if own is not None and not codes.is_endless(own) and count_running(own) > 1:
        codes.mark_endless(own)
        raise RestartTrace(None)
    return True


def is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(TORCH) and not is_standard_library(code)


def count_running(code: CodeType) -> int:
    """Calls of a function that this thread is in the middle of; compiled ones and the parts after
    a break have its place and name."""
    place, count = (code.co_filename, code.co_firstlineno), 0
    frame = sys._getframe().f_back
    while frame is not None:
        at = frame.f_code
        same_place = (at.co_filename, at.co_firstlineno) == place
        count += same_place and at.co_name == code.co_name
        frame = frame.f_back
    return count


# -- arguments ---------------------------------------------------------------------------------


def bind(
    tx: RunningFrame, function: FunctionVar, args: list[Var], kwargs: dict[str, Var]
) -> dict[str, Var]:
    """Parameters by name, as CPython binds them."""
    code = function.code
    positional = code.co_varnames[: code.co_argcount]
    only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    names: dict[str, Var] = dict(zip(positional, args, strict=False))
    where = code.co_argcount + code.co_kwonlyargcount
    extra = args[len(positional) :]
    if code.co_flags & inspect.CO_VARARGS:
        names[code.co_varnames[where]] = TupleVar(extra)
        where += 1
    rest = _bind_keywords(tx, function, names, kwargs)
    if extra and not code.co_flags & inspect.CO_VARARGS:
        raise unfit(function, f"{len(args)} positional arguments")
    _fill_defaults(tx, function, names, positional, only)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        names[code.co_varnames[where]] = DictVar.from_names(rest)
    return names


def _bind_keywords(
    tx: RunningFrame, function: FunctionVar, names: dict[str, Var], kwargs: dict[str, Var]
) -> dict[str, Var]:
    code = function.code
    allowed = code.co_varnames[
        code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount
    ]
    rest: dict[str, Var] = {}
    for name, value in kwargs.items():
        if name in allowed:
            if name in names:
                raise unfit(function, f"{name} given twice")
            names[name] = value
        elif code.co_flags & inspect.CO_VARKEYWORDS:
            rest[name] = value
        else:
            raise unfit(function, f"{name} as a keyword")
    return rest


def _fill_defaults(
    tx: RunningFrame,
    function: FunctionVar,
    names: dict[str, Var],
    positional: tuple[str, ...],
    only: tuple[str, ...],
) -> None:
    missing = [name for name in positional if name not in names]
    if missing:
        # The program may set more defaults than there are parameters: the last ones count.
        last = zip(reversed(positional), reversed(function.defaults(tx)), strict=False)
        known = dict(last)
        names.update((name, _present(tx, known[name])) for name in missing if name in known)
        check_given(function, missing, known)
    missing = [name for name in only if name not in names]
    if missing:
        known = function.kwdefaults(tx)
        names.update((name, _present(tx, known[name])) for name in missing if name in known)
        check_given(function, missing, known)


def _present(tx: RunningFrame, default: Var) -> Var:
    """A default that is taken, which may be gone later."""
    if default.source is not None:
        tx.trace.guard("PRESENT", default.source)
    return default


def check_given(function: FunctionVar, missing: list[str], defaults: dict[str, Var]) -> None:
    without = [name for name in missing if name not in defaults]
    if without:
        raise unfit(function, f"no {', '.join(without)}")


def unfit(function: FunctionVar, why: str) -> Break:
    """Of arguments that the function does not take: Python says so in its own words."""
    return Break("argument_mismatch", f"{function.qualname}() is given {why}")


# -- generators --------------------------------------------------------------------------------


def resume_generator(
    frame: RunningFrame, tx: RunningFrame, value: Var | None, exception: Var | None
) -> Var:
    """Runs a suspended generator frame; StopIteration (with its value) at the end."""
    frame.parent = tx
    started = frame.current.op == "YIELD_VALUE"
    if exception is not None:
        if started:
            delegated = _throw_into_delegate(frame)
            if delegated is not None:
                return delegated
            if frame.handled is not None:  # an `except` block of the generator's own
                frame.set_context(exception)
            tx.trace.frames.append(frame)
            try:
                frame.handle(ObservedException(exception, step=tx.trace.steps))
            finally:
                tx.trace.frames.pop()
        else:
            raise ObservedException(exception)
    else:
        frame.push(value if value is not None else ConstVar(None))
    frame.yielded = False
    try:
        result = frame.run()
    except ObservedException as error:
        if issubclass(error.value.python_type(), StopIteration):
            raise ObservedException(stopped(error.value), step=error.step) from None
        raise
    if frame.yielded:
        return result
    if result.is_constant() and result.as_constant() is None:
        tx.trace.raise_exception(StopIteration)
    tx.trace.raise_exception(StopIteration, result)


def _throw_into_delegate(frame: RunningFrame) -> Var | None:
    """`yield from` passes an exception on to its iterator; not modelled."""
    following = frame.decoded.instructions[frame.ip]
    if following.op == "NOP" and following.arg is not None:
        if following.arg & 3 == RESUME_OF_YIELD_FROM:
            raise Break("iteration_unknown", "throw() into `yield from`")
    return None
