"""Operations that break the graph for what they do at run time.

Those that may fail by the values in a tensor, where the program would catch the error: a graph runs
as a whole, behind the program's own handlers. Those that fail, where the program would see the
error: its text is eager's. Those that torch's fakes get wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.errors import Break
from dynamo.bytecode.decode import Instruction
from dynamo.symbolic.variables.base import Var

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame

aten = torch.ops.aten
# By the function's own name; those of torch.linalg are called linalg_*.
FAILING = frozenset(
    """linalg_inv linalg_cholesky linalg_solve linalg_eigh linalg_eig linalg_eigvals linalg_eigvalsh
    linalg_svd linalg_svdvals linalg_lstsq linalg_pinv linalg_cond linalg_matrix_rank
    linalg_tensorinv linalg_tensorsolve linalg_lu_factor linalg_ldl_factor linalg_matrix_power
    inverse cholesky svd pinverse multinomial""".split()
)
# What the handler of a `with` block begins with, behind the exception's push.
WITH_BLOCK = "WITH_EXCEPT_START"
# Handlers that only tidy up, and raise again.
TIDYING = frozenset({"COPY", "STOPITERATION_ERROR"})

LOSSES = frozenset({"huber_loss", "binary_cross_entropy_with_logits"})


def break_where_caught(tx: SymbolicFrame, function: Any) -> None:
    """Breaks the graph for a call whose error a `try` of the traced frames sees."""
    if getattr(function, "__name__", None) in FAILING and any(map(catches, tx.trace.frames)):
        raise Break("caught_error", function.__name__)


def break_where_seen(tx: SymbolicFrame, function: Any, error: Var) -> None:
    """Breaks the graph for a call that has failed on fakes, whose error may tell other sizes (or
    be of another kind) than eager's, where code of the program sees it. What torch says of types
    and names it says of fakes, too."""
    told = issubclass(error.python_type(), TypeError | AttributeError)
    if not told and any(map(handles, tx.trace.frames)):
        name = getattr(function, "__name__", str(function))
        raise Break("caught_error", f"{name}: {error.python_type().__name__}")


def break_where_fakes_are_wrong(tx: SymbolicFrame, function: Any, inputs: list[Any]) -> None:
    """Breaks the graph for the dropout of nothing, which gives its argument and a mask of floats,
    for losses of two dtypes, of which torch 2.11 takes another for the result, and for a conjugate
    or a negative under inference mode, where operators such as `x.to(x.dtype)` give a copy."""
    if tx.trace.inference_mode and any(map(is_lazy, inputs)):
        raise Break("operation_without_fake_kernel", "a lazy conjugate under inference mode")
    if function in (torch.native_dropout, aten.native_dropout, aten.native_dropout.default):
        if inputs and 0 in inputs[0].shape:
            raise Break("operation_without_fake_kernel", "native_dropout of an empty tensor")
    if getattr(function, "__name__", "") in LOSSES:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if len({tensor.dtype for tensor in tensors}) > 1:
            raise Break("operation_without_fake_kernel", f"{function.__name__} of two dtypes")


def is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_neg() or value.is_conj())


def catches(frame: SymbolicFrame) -> bool:
    """True where the frame is inside of a `try`, or of a `with` that it has not entered itself."""
    resumed = frame.code.co_name.startswith("__resume_")
    return any(resumed or second.op != WITH_BLOCK for second in handlers(frame))


def handles(frame: SymbolicFrame) -> bool:
    """True where the frame is inside of a `try` or a `with`."""
    return next(handlers(frame), None) is not None


def handlers(frame: SymbolicFrame) -> Iterator[Instruction]:
    """The second instructions of the handlers around the current one, innermost first."""
    decoded = frame.decoded
    handler = decoded.handlers[frame.current.index]
    while handler is not None:
        first, second = decoded.instructions[handler.target : handler.target + 2]
        if first.op not in TIDYING:
            yield second
        handler = decoded.handlers[handler.target]
