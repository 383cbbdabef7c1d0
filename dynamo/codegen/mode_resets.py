"""Torch's modes where the replay of effects ends by an error: they are what they were before it.

In eager the `with` blocks that have set them do so (none sets the default dtype). A mode holds in a
part as it did when the part was traced, which guards ensure; how deep autocast is nested is looked
up in front of the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dynamo.codegen.rebuild import Rebuilder
from dynamo.hook import Disabled
from dynamo.symbolic.core.trace_result import CallEffect, Effect
from dynamo.symbolic.tensors.modes import COUNTERS, nesting, set_nesting

# What sets a mode as it is now, for the arguments of a call that changes it.
GETTERS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    torch._C._set_grad_enabled: lambda _: (torch.is_grad_enabled(),),
    torch.set_autocast_enabled: lambda *given: (
        *given[:-1], torch.is_autocast_enabled(*given[:-1])),
    torch.set_autocast_dtype: lambda device, _: (device, torch.get_autocast_dtype(device)),
    torch.set_autocast_cache_enabled: lambda _: (torch.is_autocast_cache_enabled(),),
}


class Modes:
    """The modes that the effects of one code object set."""

    def __init__(self, rebuilder: Rebuilder, effects: Iterable[Effect]) -> None:
        self.rebuilder, self.emitter = rebuilder, rebuilder.emitter
        calls = [effect for effect in effects if isinstance(effect, CallEffect)]
        setters = [call for call in calls if call.function in GETTERS]
        self.before = tuple(dict.fromkeys(
            (call.function, GETTERS[call.function](*call.args)) for call in setters))
        self.counts = any(call.function in COUNTERS for call in calls)
        self.nesting: str | None = None

    def __bool__(self) -> bool:
        return bool(self.before) or self.counts

    def note(self) -> None:
        """Emits what can't be known before the call."""
        if self.counts:
            self.rebuilder.call_const(nesting)
            self.nesting = self.emitter.store_fresh("nesting")

    def restore(self) -> None:
        """Emits what sets the modes again."""
        self.emitter.start_call_const(Disabled(restore_modes))
        self.emitter.load_const(self.before)
        if self.nesting is None:
            self.emitter.load_const(None)
        else:
            self.emitter.load_fast(self.nesting)
        self.emitter.call(2)
        self.emitter.emit("POP_TOP")


def restore_modes(before: Iterable[tuple[Any, tuple[Any, ...]]], depth: int | None) -> None:
    """Sets modes; depth: how deep autocast is nested then, None for as deep as it is."""
    for setter, args in before:
        setter(*args)
    if depth is not None:
        set_nesting(depth)
