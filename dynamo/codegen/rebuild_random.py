"""How the new bytecode makes a seeded generator of Python's `random`."""

from __future__ import annotations

import random
from typing import Any

from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.python.seeded_random import SeededVar


def in_state(state: tuple[Any, ...]) -> random.Random:
    """A new generator in this state."""
    made = random.Random(0)
    made.setstate(state)
    return made


@rebuilds(SeededVar)
def seeded(rebuilder: Rebuilder, var: SeededVar) -> None:
    rebuilder.emitter.start_call_const(in_state)
    rebuilder.emitter.load_const(var.twin.getstate())
    rebuilder.emitter.call(1)
