"""Operations that break the graph for what they do at run time.

Those that often fail by the values in a tensor, where the program would catch the error: a graph
runs as a whole, behind the program's own handlers. (For the others, see `cut_where_caught`.) Those
that fail, where the program would see the error: its text is eager's. Those that torch's fakes get
wrong.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break
from dynamo.shapes.trials import Trial
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import module_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.handlers import catches, handles
from dynamo.symbolic.shapes.unbacked_facts import catches as tries
from dynamo.symbolic.shapes.unbacked_facts import flat
from dynamo.symbolic.tensors.state import tensor_state

aten = torch.ops.aten
# By the function's own name; those of torch.linalg are called linalg_*.
FAILING = frozenset(
    """linalg_inv linalg_cholesky linalg_solve linalg_eigh linalg_eig linalg_eigvals linalg_eigvalsh
    linalg_svd linalg_svdvals linalg_lstsq linalg_pinv linalg_cond linalg_matrix_rank
    linalg_tensorinv linalg_tensorsolve linalg_lu_factor linalg_ldl_factor linalg_matrix_power
    inverse cholesky svd pinverse multinomial""".split()
)

# Fakes take them apart without their checks of the values, or check nothing.
UNSEEN = frozenset({
    "one_hot", "istft", "_assert_async", "_assert_async.default", "_assert_async.msg",
})
# Libraries whose operators' fake kernels count what is written.
TORCH_OPERATORS = frozenset({"aten", "prim", "prims"})
# Lengths among their arguments must fit: neither zeros nor ones do, whatever the program has.
WITH_LENGTHS = frozenset({
    "lstm", "gru", "rnn_tanh", "rnn_relu", "sparse_compressed_tensor",
    "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
    "repeat_interleave", "segment_reduce",
})
# Methods that give their tensor other sizes.
RESHAPES = frozenset(
    """as_strided_ resize_ resize_as_ resize_as_sparse_ set_ sparse_resize_ sparse_resize_and_clear_
    squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_""".split()
)
USUAL = frozenset({torch.float32, torch.float64, torch.bfloat16})
LOSSES = frozenset({"huber_loss", "binary_cross_entropy_with_logits"})


def break_where_caught(tx: Frame, function: Any) -> None:
    """Breaks the graph for a call whose error a `try` of the traced frames sees."""
    if getattr(function, "__name__", None) in FAILING and any(map(catches, tx.trace.frames)):
        raise Break("caught_error", function.__name__)


def break_where_returned(function: Any) -> None:
    """Breaks the graph for an operator of a library that returns what it is given: functional
    graphs, of which each result has memory of its own, have no form of it."""
    if not isinstance(function, torch._ops.OpOverload) or (
        function.namespace in TORCH_OPERATORS or function.namespace.startswith("_")
    ):
        return
    if any(result.alias_info is not None for result in function._schema.returns):
        raise Break("call_of_unknown_function", f"{function}, which returns what it is given")


def break_where_stored(tx: Frame, function: Any, tensors: Sequence[Var]) -> None:
    """Breaks the graph where a tensor with a stored gradient, or the gradient, gets other sizes:
    the store comes behind the graph, and both must be of one size there."""
    name = getattr(function, "__name__", "").partition(".")[0]
    if name not in RESHAPES:
        return
    stored = tx.trace.effects.gradients()
    if any(var in stored for var in tensors):
        raise Break("call_of_unknown_function", f"{name} of a stored gradient, or its owner")


def note_failing(tx: Frame, node: fx.Node, function: Any, observed: set[str]) -> None:
    """Notes in a node what the world has observed of its operation, and whether the program catches
    its errors. Operators that are not torch's may raise for reasons of their own."""
    own = not isinstance(function, torch._ops.OpOverload) or function.namespace in TORCH_OPERATORS
    by_size = node.meta["checks"]  # which are known when the graph runs
    unseen = getattr(function, "__name__", "") in UNSEEN
    fails = by_size or "fails" in observed or unseen
    node.meta["checks"] |= fails or bool(observed - {"acts"})
    node.meta["acts"] = "acts" in observed or is_in_graph(function)
    node.meta["draws"] = "draws" in observed
    other = is_in_graph(function) or not own
    node.meta["fails"] = fails or other
    raises = by_size or "raises" in observed or unseen or other
    seen = tries if by_size else catches
    node.meta["caught"] = raises and any(map(seen, tx.trace.frames))


def break_where_seen(tx: Frame, function: Any, error: Var) -> None:
    """Breaks the graph for a call that has failed on fakes, whose error may tell other sizes (or
    be of another kind) than eager's, where code of the program sees it. What torch says of types
    and names it says of fakes, too."""
    is_usual = issubclass(error.python_type(), TypeError | AttributeError)
    if not is_usual and any(map(handles, tx.trace.frames)):
        name = getattr(function, "__name__", str(function))
        raise Break("caught_error", f"{name}: {error.python_type().__name__}")


def break_where_write_fails(tx: Frame, function: Any, written: list[Any]) -> None:
    """Breaks the graph for a write into several elements in one place, which fakes let pass, where
    code of the program sees the error."""
    if any(map(repeats, written)) and any(map(handles, tx.trace.frames)):
        raise Break("caught_error", getattr(function, "__name__", str(function)))


def trial_of(
    tx: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Trial | None:
    """Takes down a call of torch's own that eager may refuse though fakes let it pass: any where
    code of the program sees the error, elsewhere one of unusual or several dtypes."""
    if not is_tried(function) or torch._C._functorch.get_dynamic_layer_stack_depth():
        return None
    if is_usual([*args, *kwargs.values()]) and not any(map(handles, tx.trace.frames)):
        return None
    return Trial(args, kwargs, tx.trace.world.constants.value)


def is_tried(function: Any) -> bool:
    """True for torch's own functions on tensors, but not for those that compute gradients, or that
    take lengths."""
    if getattr(function, "__name__", "").partition(".")[0] in WITH_LENGTHS:
        return False
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace in TORCH_OPERATORS
    module = module_of(function)
    if isinstance(function, types.FunctionType) and not module.startswith("torch."):
        return False
    return not module.startswith("torch.autograd") and not is_in_graph(function)


def is_usual(values: list[Any]) -> bool:
    """True where all tensors are of one dtype that nearly all operations take."""
    dtypes = {value.dtype for value in flat(values) if isinstance(value, torch.Tensor)}
    return len(dtypes) < 2 and dtypes <= USUAL and complex not in map(type, values)


def break_where_refused(
    tx: Frame, function: Any, trial: Trial | None, given: list[Any], result: Any
) -> None:
    """Breaks the graph for a call that fakes let pass though eager refuses what it is given,
    whatever the values. Where those may decide, it is noted in the node (see `note_failing`), as is
    a call of unusual dtypes that can't be tried, where the program catches its error: elsewhere a
    call that nothing reads would run for nothing."""
    if trial is None or "raises" in tx.trace.world.observed:
        return
    refused = trial.refuses(function, result, tx.trace.context.refusals)
    if refused is None and not is_usual(given) and any(map(catches, tx.trace.frames)):
        tx.trace.world.observed |= {"fails", "raises"}
    if not refused:
        return
    seen = any(map(handles, tx.trace.frames))
    name = getattr(function, "__name__", str(function))
    raise Break("caught_error" if seen else "escaping_exception", name)


def repeats(tensor: torch.Tensor) -> bool:
    """True where an expanded dimension may have more than one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(type(step) is int and step == 0 and (type(size) is not int or size > 1)
               for size, step in pairs)


def break_where_fakes_are_wrong(tx: Frame, function: Any, inputs: list[Any]) -> None:
    """Breaks the graph for the dropout of nothing, which gives its argument and a mask of floats,
    losses of two dtypes, of which torch 2.11 takes another for the result, the statistics of layer
    norm in half precision, and a conjugate or a negative under inference mode, where operators such
    as `x.to(x.dtype)` give a copy."""
    if tensor_state(tx.trace).inference_mode and any(map(is_lazy, inputs)):
        raise Break("operation_without_fake_kernel", "a lazy conjugate under inference mode")
    if function in (torch.native_dropout, aten.native_dropout, aten.native_dropout.default):
        if inputs and 0 in inputs[0].shape:
            raise Break("operation_without_fake_kernel", "native_dropout of an empty tensor")
    if function in NORMS_WITH_STATISTICS and any(
        isinstance(value, torch.Tensor) and value.dtype in HALVES for value in inputs
    ):
        raise Break("operation_without_fake_kernel", "statistics in half precision")
    if getattr(function, "__name__", "") in LOSSES:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if len({tensor.dtype for tensor in tensors}) > 1:
            raise Break("operation_without_fake_kernel", f"{function.__name__} of two dtypes")


HALVES = frozenset({torch.float16, torch.bfloat16})
NORMS_WITH_STATISTICS = frozenset((
    torch.native_layer_norm, aten.native_layer_norm, aten.native_layer_norm.default,
    aten._native_batch_norm_legit, aten._native_batch_norm_legit.no_stats,
))


def is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_neg() or value.is_conj())
