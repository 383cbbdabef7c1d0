"""Random numbers: drawn at once, by eager's kernels, so that the stream is eager's at any time.

In: an operator that draws. Out: its result. Most such operators read nothing but sizes, and need no
value of the trace; what they return is known from the start. Those that read values end the trace.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.lazy import replay
from dynamo.lazy.eager import run_eagerly
from dynamo.lazy.tensor import LazyTensor, wrap
from dynamo.lazy.values import Value, facts_of
from dynamo.shapes.facts import Facts

aten = torch.ops.aten

# Write all of their first operand, and read nothing of it.
FILLS = frozenset((
    aten.bernoulli_.float, aten.normal_.default, aten.uniform_.default, aten.random_.default,
    aten.random_.to, getattr(aten.random_, "from"), aten.exponential_.default,
    aten.cauchy_.default, aten.geometric_.default, aten.log_normal_.default,
))  # fmt: skip
# Read only the metadata of their first operand.
LIKES = frozenset((
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default,
    aten.randint_like.low_dtype, aten.bernoulli.p,
))  # fmt: skip
# Draw only where an argument says so: its place and its name.
SOMETIMES: dict[Any, tuple[int, str]] = {
    aten._scaled_dot_product_flash_attention.default: (3, "dropout_p"),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (3, "dropout_p"),
    aten._scaled_dot_product_efficient_attention.default: (5, "dropout_p"),
    aten._scaled_dot_product_cudnn_attention.default: (5, "dropout_p"),
}


def draw(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that draws; NotImplemented where it does not this time."""
    if func in SOMETIMES:
        at, name = SOMETIMES[func]
        rate = args[at] if at < len(args) else kwargs.get(name, 0.0)
        return NotImplemented if rate == 0.0 else _in_eager(recorder, func, args, kwargs)
    if not args or type(args[0]) is not LazyTensor:
        if any(isinstance(arg, (torch.Tensor, list)) for arg in args if not _is_sizes(arg)):
            return _in_eager(recorder, func, args, kwargs)
        replay.call_was(replay.OUTSIDE)
        return func(*args, **kwargs)
    if func in FILLS:
        drawn = func(_empty(args[0]._lazy.facts), *args[1:], **kwargs)
        filled = recorder.dispatch(aten.copy_.default, (args[0], known(drawn)), {})
        if replay.SAID.deed == replay.RECORD:
            replay.call_was(replay.FILL, drawn)
        return filled
    if func in LIKES:
        replay.call_was(replay.LIKE)
        return known(func(_empty(args[0]._lazy.facts), *args[1:], **kwargs))
    if func is aten.native_dropout.default and args[0].is_cuda and args[2] and 0 < args[1] < 1:
        return _dropout(recorder, *args)
    return _in_eager(recorder, func, args, kwargs)


def _dropout(recorder: Any, x: LazyTensor, rate: float, train: bool) -> Any:
    """The mask is what is drawn; it does not depend on the values."""
    _, drawn = aten.native_dropout.default(_empty(x._lazy.facts).fill_(1), rate, train)
    mask = known(drawn)
    masked = recorder.dispatch(aten.mul.Tensor, (x, mask), {})
    return recorder.dispatch(aten.mul.Tensor, (masked, 1.0 / (1.0 - rate)), {}), mask


def _in_eager(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return run_eagerly(recorder, func, args, kwargs, "it draws random numbers by values", False)


def _is_sizes(arg: Any) -> bool:
    return isinstance(arg, (list, tuple)) and all(isinstance(item, int) for item in arg)


def _empty(facts: Facts) -> torch.Tensor:
    return torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype, device=facts.device)


def known(real: torch.Tensor) -> LazyTensor:
    """A lazy tensor that has its value."""
    return wrap(Value(facts_of(real), real))


def fill(result: Any, values: list[Value], operands: list[Any]) -> Any:
    """A rule's result with tensors in place of `New` and `Operand`."""
    kind = type(result).__name__
    if kind == "New":
        return wrap(values[result.number])
    if kind == "Operand":
        return operands[result.number]
    if isinstance(result, (list, tuple)):
        return type(result)([fill(item, values, operands) for item in result])
    return result
