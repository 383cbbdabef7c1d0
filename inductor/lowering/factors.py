"""The lowering of an operand of products that are written out: see `inductor.operators.factor_ops`.
"""

from __future__ import annotations

from typing import Any

from inductor.lowering.builder import CHEAP
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Tensor
from inductor.operators.factor_ops import FACTOR

# Operations, in all places where it is used, from which on an operand is stored. Chosen, not
# measured: two operands and their products stay below what makes a tensor too large to be computed
# where it is read (`builder.MOST_COST`), and an H200 does three times as many in the time in which
# an element is stored and loaded.
MOST_COST = 16


@lowering(FACTOR)
def factor(call: Call, x: Tensor, uses: int) -> Any:
    cost = x.root().cost
    if cost >= CHEAP and cost * uses > MOST_COST:
        x.realize()
    return call.builder.computed(call.layout, [x], 0, lambda ops, i: x.load(ops, i))
