"""Generators of Python's `random` that the traced program makes of a constant seed.

What they draw is known: the trace has a generator of the same seed draw it, and numbers, choices
and orders are constants. A generator that outlives the graph is made again in its state.
"""

from __future__ import annotations

import random
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, first_rule, plain_value, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, SequenceVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.python_random import FUNCTIONS
from dynamo.symbolic.python.ranges import RangeVar

SEEDS = (int, float, str, bytes)
NUMBERS = (*FUNCTIONS, "getstate", "randbytes", "binomialvariate")


class SeededVar(ObjectVar):
    """A `random.Random`; twin: a real one in the same state."""

    def __init__(self, twin: random.Random) -> None:
        super().__init__(random.Random)
        self.twin = twin

    def describe(self) -> str:
        return "a seeded random.Random"

    def write_own(self, tx: Frame, name: str, value: Var | None) -> None:
        raise Break("attribute_store_unknown", f"{name} of {self!r}")


def is_known(seed: Var) -> bool:
    """True for a seed that the program's text says, which is the same in each call."""
    return type(seed) is ConstVar and seed.source is None and type(seed.value) in SEEDS


@rule([random.Random])
def make(tx: Frame, *seed: Var) -> Var | None:
    """`random.Random(4)`."""
    if len(seed) != 1 or not is_known(seed[0]):
        return None
    return SeededVar(random.Random(seed[0].as_constant()))


def register(name: str) -> None:
    function = getattr(random.Random, name)

    @first_rule(function, SeededVar)
    def draw(tx: Frame, generator: SeededVar, /, *args: Var, **kwargs: Var) -> Var:
        values = [plain_value(arg) for arg in args]
        keywords = {key: plain_value(value) for key, value in kwargs.items()}
        tx.trace.effects.tick()
        return tx.trace.constant(
            tx.trace.run_real(lambda: function(generator.twin, *values, **keywords)))


for _name in NUMBERS:
    if hasattr(random.Random, _name):
        register(_name)


def items_of(tx: Frame, population: Var) -> list[Var]:
    """The items of a sequence, of which the generator only sees how many there are."""
    text = isinstance(population, ConstVar) and isinstance(population.as_constant(), str)
    if not (isinstance(population, SequenceVar | RangeVar) or text):
        raise Break("call_of_unknown_function", f"a choice from {population!r}")
    tx.trace.effects.tick()
    return population.unpack(tx)


@first_rule(random.Random.seed, SeededVar)
def seed_again(tx: Frame, generator: SeededVar, seed: Var) -> Var:
    if not is_known(seed):
        raise Break("call_of_unknown_function", f"seed({seed!r})")
    tx.trace.effects.tick()
    generator.twin.seed(seed.as_constant())
    return NONE


@first_rule(random.Random.setstate, SeededVar)
def set_state(tx: Frame, generator: SeededVar, state: Var) -> Var:
    tx.trace.effects.tick()
    tx.trace.run_real(lambda: generator.twin.setstate(plain_value(state)))
    return NONE


@first_rule(random.Random.choice, SeededVar)
def choice(tx: Frame, generator: SeededVar, population: Var) -> Var:
    items = items_of(tx, population)
    index: int = tx.trace.run_real(lambda: generator.twin.choice(range(len(items))))
    return items[index]


@first_rule(random.Random.shuffle, SeededVar)
def shuffle(tx: Frame, generator: SeededVar, items: Var) -> Var:
    if type(items) is not ListVar:
        raise Break("call_of_unknown_function", f"shuffle({items!r})")
    order = list(range(len(items.items)))
    generator.twin.shuffle(order)
    old = list(items.items)
    items.change(tx)[:] = [old[index] for index in order]
    return NONE


def several(tx: Frame, name: str, generator: SeededVar, population: Var,
            args: tuple[Var, ...], kwargs: dict[str, Var]) -> Var:
    """`sample` or `choices`: the generator picks among the places of the items."""
    items = items_of(tx, population)
    values: list[Any] = [plain_value(arg) for arg in args]
    keywords = {key: plain_value(value) for key, value in kwargs.items()}
    function = getattr(generator.twin, name)
    picked = tx.trace.run_real(lambda: function(range(len(items)), *values, **keywords))
    return ListVar([items[index] for index in picked])


@first_rule(random.Random.sample, SeededVar)
def sample(
    tx: Frame, generator: SeededVar, /, population: Var, *args: Var, **kwargs: Var
) -> Var:
    return several(tx, "sample", generator, population, args, kwargs)


@first_rule(random.Random.choices, SeededVar)
def choices(
    tx: Frame, generator: SeededVar, /, population: Var, *args: Var, **kwargs: Var
) -> Var:
    return several(tx, "choices", generator, population, args, kwargs)
