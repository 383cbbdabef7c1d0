"""Which operators of a graph are collectives, and in which order calls with effects stay.

In: a call of an operator, with its arguments. Out: the `Collective` that it starts; whether it
waits for one. A functional collective gives a tensor at once, whose contents are there behind
`wait_tensor` of it, which gives the same memory.

The order (`EffectOrder`) is what other ranks can see of this one. Collectives of one group start in
the program's order. No wait comes before a start that the program has before it: so what a rank has
waited for when it starts a collective is never more than in eager, and where ranks in eager do not
wait for each other in a circle, they do not here. What is not known stays behind all that it
follows, but waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dynamo.graph_operators.operator_effects import acts, freedom_of

NAMESPACE = "_c10d_functional"
WAIT = "wait_tensor"
COALESCED = "_coalesced"
# Kinds, and whether the operator still reads its operand when it has returned: of others it sends
# a copy.
KINDS = {
    "all_reduce": False,
    "broadcast": False,
    "all_gather_into_tensor": True,
    "reduce_scatter_tensor": True,
    "all_to_all_single": True,
}


@dataclass(frozen=True, slots=True)
class Collective:
    """kind: see `KINDS`; group: its name; op: of a reduction; coalesced: of a list of tensors."""

    kind: str
    group: str
    op: str
    coalesced: bool

    @property
    def reads_on(self) -> bool:
        """Whether its operand must stay as it is until the wait."""
        return KINDS[self.kind]


def is_wait(target: Any) -> bool:
    """Whether an operator waits for a collective.

    >>> import torch
    >>> is_wait(torch.ops._c10d_functional.wait_tensor.default), is_wait(torch.ops.aten.sin.default)
    (True, False)
    """
    return getattr(target, "namespace", "") == NAMESPACE and target._opname == WAIT


def collective_of(target: Any, args: Sequence[Any]) -> Collective | None:
    """What a call starts; None for any other call.

    >>> import torch
    >>> collective_of(torch.ops._c10d_functional.all_reduce.default, (None, "sum", "0")).kind
    'all_reduce'
    """
    if getattr(target, "namespace", "") != NAMESPACE or target._overloadname != "default":
        return None
    kind = target._opname.removesuffix(COALESCED)
    names = [argument.name for argument in target._schema.arguments]
    if kind not in KINDS or len(args) < len(names):
        return None
    named = dict(zip(names, args, strict=False))
    group = named["group_name"]
    text = group if isinstance(group, str) else str(getattr(group, "group_name", group))
    op = str(named.get("reduce_op", ""))
    return Collective(kind, text, op, target._opname.endswith(COALESCED))


class EffectOrder:
    """Calls with effects, told one after the other, by position; see the top of the file."""

    def __init__(self) -> None:
        self.fence: int | None = None  # the last one of which nothing is known
        self.random: int | None = None
        self.starts: dict[str, int] = {}  # the last of each group

    def before(self, position: int, target: Any, args: Sequence[Any]) -> set[int]:
        """The nearest of those that must run before this call; empty for one without effects."""
        if freedom_of(target).move:
            return set()
        found = set() if self.fence is None else {self.fence}
        started = collective_of(target, args)
        if started is not None:
            if started.group in self.starts:
                found.add(self.starts[started.group])
            self.starts[started.group] = position
        elif is_wait(target):
            found.update(self.starts.values())
        else:
            if self.random is not None:
                found.add(self.random)
            if acts(target):
                found.update(self.starts.values())
                self.fence, self.starts = position, {}
            self.random = position
        return found
