"""Random numbers of Python in the new code: drawn first, in their order, and given to the graph."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch

from dynamo.codegen.rebuild import Rebuilder
from dynamo.hook import Disabled
from dynamo.symbolic.core.trace_result import DrawEffect, Effect
from dynamo.symbolic.core.var import Var

DTYPES = {float: torch.float64, int: torch.int64}


class Draws:
    """The draws of one code object.

    states: generators, and the locals with their states before the draws, where these are kept.
    """

    def __init__(self, rebuilder: Rebuilder, effects: Iterable[Effect]) -> None:
        self.rebuilder, self.emitter = rebuilder, rebuilder.emitter
        self.effects = [effect for effect in effects if isinstance(effect, DrawEffect)]
        self.states: dict[Var, str] = {}

    def make(self, keep_states: bool) -> None:
        """Draws the numbers."""
        for target in dict.fromkeys(effect.target for effect in self.effects):
            if keep_states:
                self.rebuilder.call_const(random.Random.getstate, target)
                self.states[target] = self.emitter.store_fresh("state")
        for effect in self.effects:
            self.rebuilder.call_const(effect.function, effect.target, *effect.args)
            self.rebuilder.places[effect.result] = self.emitter.store_fresh("drawn")

    def undo(self) -> None:
        """Brings the generators back."""
        for target, name in self.states.items():
            self.emitter.start_call_const(random.Random.setstate)
            self.rebuilder.load(target)
            self.emitter.load_fast(name)
            self.emitter.call(2)
            self.emitter.emit("POP_TOP")

    def join(self, numbers: Iterable[int]) -> None:
        """Adds numbers to the tuple of the graph's inputs on the top of the stack."""
        chosen = [self.effects[number].result for number in numbers]
        if chosen:
            inputs = self.emitter.store_fresh("inputs")
            self.emitter.start_call_const(Disabled(with_draws))
            self.emitter.load_fast(inputs)
            self.emitter.call(1 + self.rebuilder.load_all(chosen))


def with_draws(inputs: tuple[Any, ...], *numbers: float) -> tuple[Any, ...]:
    """The graph's inputs: what the guards have collected, and random numbers."""
    drawn = (torch.tensor(n, dtype=DTYPES[type(n)], device="cpu") for n in numbers)
    return (*inputs, *drawn)
