"""Running one operator in eager between two traces (LazyTensor paper, section 4.5).

In: a call whose arguments may be lazy. Out: its result; tensors in it are lazy again, and known.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.lazy import replay
from dynamo.lazy.rules import put
from dynamo.lazy.tensor import LazyTensor, wrap
from dynamo.lazy.values import BASE, Value, facts_of, is_plain

# They save something for backward only where gradients are enabled, which no trace knows.
GRADED = frozenset((torch.ops.aten.mkldnn_rnn_layer.default,
                    torch.ops.aten.mkldnn_rnn_layer_backward.default))  # fmt: skip


def run_eagerly(
    recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str,
    look: bool,
) -> Any:
    """The result of the call on real tensors. look: it reads a value, as `item` does."""
    name = str(func)
    recorder.before_eager(name, reason, look)
    replay.SAID.forget()
    replay.call_was(replay.SKIP)
    known: list[tuple[torch.Tensor, torch.Tensor]] = []
    borrowed: set[int] = set()

    def real(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, LazyTensor):
            if tensor.layout is torch.strided:
                borrowed.add(BASE.untyped_storage(tensor)._cdata)
            known.append((tensor, tensor))
            return tensor
        found: torch.Tensor = recorder.real_of(tensor._lazy, name)
        if tensor._lazy.borrowed:
            borrowed.add(BASE.untyped_storage(found)._cdata)
        known.append((tensor, found))
        return found

    given = tuple(put(arg, real) for arg in args)
    others = {key: put(arg, real) for key, arg in kwargs.items()}
    with torch.set_grad_enabled(torch.is_grad_enabled() and func in GRADED):
        result = func(*given, **others)
    for tensor, found in known:
        if type(tensor) is LazyTensor:
            _follow_sizes(tensor, found)

    def lazy(tensor: torch.Tensor) -> torch.Tensor:
        for before, found in known:
            if found is tensor:
                return before
        if not is_plain(tensor):
            return tensor
        shared = BASE.untyped_storage(tensor)._cdata in borrowed
        return wrap(Value(facts_of(tensor), tensor, shared))

    return put(result, lazy)


def _follow_sizes(tensor: LazyTensor, real: torch.Tensor) -> None:
    """Gives the lazy tensor the sizes that an operator has given to the real one."""
    facts = facts_of(real)
    value = tensor._lazy
    if facts is value.facts:
        return
    value.facts, value.trace = facts, None
    with torch._C._DisableTorchDispatch():
        torch.Tensor.as_strided_(tensor, facts.size, facts.stride, facts.offset)
