"""Numbers drawn from generators of Python's `random`.

A draw is made by the new code before the graph, in its place among the draws; the graph gets the
number as an input, so that each call has another one. What picks or moves objects (`choice`,
`shuffle`) and what reads or sets a generator's state breaks the graph.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import DrawSource
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_owner
from dynamo.symbolic.core.table import plain_value, rule
from dynamo.symbolic.core.trace_result import DrawEffect
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar

FUNCTIONS = """random uniform triangular betavariate expovariate gammavariate gauss lognormvariate
normalvariate vonmisesvariate paretovariate weibullvariate randint randrange getrandbits""".split()
DTYPES = {float: torch.float64, int: torch.int64}
LARGEST = 2**62
BASIC = ("random", "getrandbits")  # of a base class; all other numbers are made of these


def register(name: str) -> None:
    function = getattr(random.Random, name)

    @rule(function, ObjectVar)
    def draw(tx: Frame, generator: ObjectVar, /, *args: Var, **kwargs: Var) -> Var:
        if generator.source is None or generator.python_type() is not random.Random or kwargs:
            raise Break("call_of_unknown_function", f"{name} of {generator!r}")
        found = [find_owner(random.Random, part) for part in BASIC]
        if any(place is None or place[0] is random.Random for place in found):
            raise Break("call_of_unknown_function", f"{name}, the parts of which are replaced")
        values = tuple(map(plain_value, args))
        probe = tx.trace.run_real(lambda: function(random.Random(0), *values))
        if type(probe) not in DTYPES or any(abs(value) > LARGEST for value in values):
            raise Break("call_of_unknown_function", f"{name}{shown(values)}")
        if name == "getrandbits" and values[0] > 62:
            raise Break("call_of_unknown_function", f"{name}{shown(values)}")
        return drawn(tx, function, generator, values, DTYPES[type(probe)])


def drawn(
    tx: Frame, function: Any, generator: Var, values: tuple[Any, ...], dtype: torch.dtype
) -> Var:
    """A number that the new code draws."""
    trace = tx.trace
    if not trace.symbols.unbacked.possible():
        raise Break("call_of_unknown_function", f"{function.__name__} where sizes are static")
    count = sum(isinstance(effect, DrawEffect) for effect in trace.effects.places().values())
    fake = trace.world.from_real(torch.zeros((), dtype=dtype, device="cpu"))
    given = trace.graph.placeholder(DrawSource(count, dtype), fake)
    number = trace.world.make_unbacked(float if dtype.is_floating_point else int)
    node = trace.graph.read_input("call_method", "item", (given,), number)
    exact = not dtype.is_floating_point
    result = trace.symbols.unbacked.make(number, lambda: node, exact)
    trace.effects.draw(function, generator, values, result)
    return result


def register_break(name: str, code: str) -> None:
    @rule(getattr(random.Random, name), ObjectVar)
    def stop(tx: Frame, generator: ObjectVar, /, *args: Var, **kwargs: Var) -> Var | None:
        if generator.python_type() is not random.Random:
            return None  # its methods are Python functions
        raise Break(code, f"{name} of {generator!r}")


for _name in FUNCTIONS:
    register(_name)
for _name in ("choice", "choices", "sample", "shuffle"):
    register_break(_name, "random_choice")
for _name in ("seed", "getstate", "setstate"):
    register_break(_name, "random_state")
