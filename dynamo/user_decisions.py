"""What a user may decide about functions and about compiling as a whole.

Names and meaning are those of torch.compiler:
`allow_in_graph`, `disallow_in_graph`, `substitute_in_graph`, `assume_constant_result`, `skip`,
`set_stance`, `mark_dynamic`, `maybe_mark_dynamic`, `mark_unbacked`, `mark_static`. The decisions
hold for the process and for what is traced afterwards.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from dynamo import hook
from dynamo.backends.registry import lookup_backend
from dynamo.base.autograd_apply import is_apply
from dynamo.base.decisions import STANCES, Stance, Substitute, decisions
from dynamo.shapes.marks import Mark, set_mark


def _original(name: str, fn: Any) -> Any:
    """The plain function behind a compiled one."""
    if not callable(fn):
        raise TypeError(f"{name} takes a callable, not {fn!r}")
    if is_apply(fn):  # a new object each time that it is asked for
        return fn.__self__
    return fn.__wrapped__ if isinstance(fn, hook.Compiled) else fn


def _decide(name: str, fn: Any, kind: str, opposite: str) -> Any:
    """One decision in the place of its opposite, for a function or each of a list or tuple."""
    for each in fn if isinstance(fn, list | tuple) else (fn,):
        function = _original(name, each)
        decisions.drop(opposite, function)
        decisions.keep(kind, function)
    return fn


def allow_in_graph(fn: Any) -> Any:
    """The function becomes one node of the graph; its body is not looked at.

    fn: a callable, or a list or tuple of callables; of a `torch.autograd.Function`, the class or
    its `apply`. Returns what it was given. The function must take and return tensors and constants,
    and use no other tensors than its arguments.
    """
    return _decide("allow_in_graph", fn, "in_graph", "not_in_graph")


def nonstrict_trace(traceable_fn: Any) -> Any:
    """The function is one node of the graph; the backend traces what it does with its tensors, and
    Python's own checks are not made: the same as `allow_in_graph`, for one function."""
    if isinstance(traceable_fn, list | tuple):
        raise TypeError(f"nonstrict_trace takes one function, not {traceable_fn!r}")
    return allow_in_graph(traceable_fn)


def disallow_in_graph(fn: Any) -> Any:
    """A call of the function ends the graph; fn: a callable, or a list or tuple of callables."""
    return _decide("disallow_in_graph", fn, "not_in_graph", "in_graph")


def assume_constant_result(fn: Any) -> Any:
    """The function is called once, while tracing; its result is taken for ever, unchecked."""
    decisions.keep("constant", _original("assume_constant_result", fn))
    return fn


def skip(fn: Any = None) -> Any:
    """Frames of this function run as they are; functions that it calls are compiled."""
    if fn is None:
        return skip
    function = _original("skip", fn)
    if not hasattr(function, "__code__"):
        raise TypeError(f"skip takes a function written in Python, not {fn!r}")
    decisions.keep("skipped", function.__code__)
    return fn


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the decorated Python function is traced wherever `original_fn` is called.

    can_constant_fold_through: with constant arguments the original is called while tracing.
    The result of the decorator calls the original. Errors: TypeError for signatures that differ.
    """
    if not callable(original_fn):
        raise TypeError(f"substitute_in_graph takes a callable, not {original_fn!r}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function) or not hasattr(function, "__code__"):
            raise TypeError(f"a Python function is needed, not {function!r}")
        if not skip_signature_check:
            _compare_signatures(original_fn, function)
        decisions.keep("substitute", original_fn, Substitute(function, can_constant_fold_through))

        @functools.wraps(original_fn)
        def call_original(*args: Any, **kwargs: Any) -> Any:
            return original_fn(*args, **kwargs)

        decisions.keep("substitute", call_original, Substitute(function, can_constant_fold_through))
        return call_original

    return register


def _compare_signatures(original: Callable[..., Any], function: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):
        return  # C functions without a text signature
    given = inspect.signature(function)

    def shape(signature: inspect.Signature) -> list[tuple[str, Any, bool]]:
        return [(p.name, p.kind, p.default is p.empty) for p in signature.parameters.values()]

    if shape(wanted) != shape(given):
        raise TypeError(
            f"{original!r} has the signature {wanted}, its substitute {given}; "
            "skip_signature_check=True takes it all the same"
        )


class set_stance:  # noqa: N801
    """Sets how compiled calls behave from now on; also a context manager and a decorator.

    "default": compile. "force_eager": as if nothing were compiled. "eager_on_recompile": use what
    is compiled already, compile nothing more. "fail_on_recompile": RecompileError in place of a
    compile. "eager_then_compile": the first call of a function runs as it is; the second compiles,
    and takes what it has changed as symbolic. "aot_eager_then_compile": a function's first compile
    is by "aot_eager", which is quick, those for other values by its own backend. force_backend: in
    the default stance, compile with this backend in place of others.
    Errors: ValueError for an unknown stance; RuntimeError inside of a compiled function.

        >>> with set_stance("force_eager"):
        ...     pass
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: Any = None,
    ) -> None:
        if stance not in STANCES:
            raise ValueError(f"there is no stance {stance!r}; stances are {', '.join(STANCES)}")
        if skip_guard_eval_unsafe:
            raise ValueError("skip_guard_eval_unsafe is not supported: guards are always checked")
        if force_backend is not None and stance != "default":
            raise ValueError("force_backend= goes with the stance 'default' only")
        backend = None if force_backend is None else lookup_backend(force_backend)
        self._stance = Stance(stance, backend)
        self._before = decisions.stance
        self._take(self._stance)

    def _take(self, stance: Stance) -> None:
        if hook.active_region() is not None:
            raise RuntimeError("set_stance can't be called inside of a compiled function")
        decisions.stance = stance
        hook.set_all_eager(stance.name == "force_eager")

    def __enter__(self) -> None:
        self._take(self._stance)

    def __exit__(self, *raised: object) -> None:
        self._take(self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator: the stance holds while the function runs."""
        self._take(self._before)
        stance, backend = self._stance.name, self._stance.backend

        @functools.wraps(fn)
        def in_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance, force_backend=backend):
                return fn(*args, **kwargs)

        return in_stance


def mark_dynamic(
    tensor: torch.Tensor,
    index: int | list[int] | tuple[int, ...],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Dimensions of this tensor are symbolic from the first compile on.

    index: a dimension or several; min, max: the sizes that the compiled code has to hold for. A
    program that fixes such a size is a ConstraintViolation that names the line; so is a compile for
    a size out of the range, or for 0 or 1, whose code would hold for no other size.

    >>> mark_dynamic(torch.ones(4, 3), 0, min=2, max=64)
    """
    _mark(tensor, index, Mark("dynamic", min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, index: int | list[int] | tuple[int, ...]) -> None:
    """Like `mark_dynamic`, but a program that fixes the size is compiled for that size."""
    _mark(tensor, index, Mark("maybe"))


def mark_unbacked(
    tensor: torch.Tensor,
    index: int | list[int] | tuple[int, ...],
    *,
    strict: bool = False,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Like `mark_dynamic` for all sizes, 0 and 1 too: no decision may look at the size.

    A program that needs to know something of it is a ConstraintViolation that names the line;
    `torch._check(x.size(0) > 3)` says what holds. An operation that fits one size only (`x + y`
    where y has 5 rows) is compiled for that size, and is a ConstraintViolation with strict=True.
    shape_id: dimensions of one name have one size. min, max: the sizes that calls may have.

    >>> mark_unbacked(torch.ones(1, 3), 0)
    """
    _mark(tensor, index, Mark("strict" if strict else "unbacked", min, max, shape_id or ""))


def mark_static(
    tensor: torch.Tensor, index: int | list[int] | tuple[int, ...] | None = None
) -> None:
    """Dimensions of this tensor (all by default) are constants, whatever changes."""
    _mark(tensor, index, Mark("static"))


def _mark(
    tensor: torch.Tensor, index: int | list[int] | tuple[int, ...] | None, mark: Mark
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {tensor!r}")
    index = list(range(tensor.dim())) if index is None else index
    for axis in index if isinstance(index, list | tuple) else (index,):
        set_mark(tensor, axis, mark)
