"""May a call of an operator be dropped, moved, repeated? One answer for all stages.

In: what a node of a graph calls, with its arguments where they are known. Out: its `Freedom`. It
follows from the operator's schema (what it writes), its tags (whether it draws random numbers), the
registries of effects that torch.fx and torch.library keep, and the library that it belongs to. Of
an operator that is not torch's own nothing is known: it may print, count, or send to another rank.

Errors that follow from values are no subject here: see `dynamo.shapes.observable`.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._library.simple_registry import singleton as library_registry
from torch.fx import node as fx_registry

from dynamo.graph_operators.written_operators import NAMESPACE as TWINS
from dynamo.graph_operators.written_operators import operator_of

OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket


class Freedom(NamedTuple):
    """What stages may do with a call. drop: leave it out where nothing reads its results. move: let
    it change places with other calls that may not be moved. repeat: run it twice, or once for two
    equal calls."""

    drop: bool
    move: bool
    repeat: bool


FREE = Freedom(drop=True, move=True, repeat=True)
BOUND = Freedom(drop=False, move=False, repeat=False)
WRITES = Freedom(drop=False, move=True, repeat=False)  # their places follow from what they write
CHECKS = Freedom(drop=False, move=False, repeat=True)

# Libraries of which schemas and tags say all; the last ones are ours.
KNOWN = frozenset("""aten prim prims mkldnn quantized quantized_decomposed rngprims
    dynamo_jit dynamo_kernels""".split())
# Parts of names of torch's operators that check something and give a tensor all the same.
CHECKING = ("assert", "constrain", "check_errors")


def freedom_of(
    target: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> Freedom:
    """args, kwargs: of the call; without them the answer holds for all calls.

    >>> aten = torch.ops.aten
    >>> freedom_of(aten.sin.default) is FREE, freedom_of(aten.bernoulli.default) is BOUND
    (True, True)
    >>> freedom_of(aten.add_.Tensor).drop, freedom_of(aten._assert_async.msg).repeat
    (False, True)
    """
    if isinstance(target, OpOverloadPacket):
        found = [freedom_of(overload) for overload in _overloads(target)]
        return Freedom(*map(all, zip(*found, strict=True))) if found else BOUND
    if not isinstance(target, OpOverload):
        return BOUND if is_registered(target) else FREE
    if is_check(target):
        return CHECKS
    if acts(target) or draws(target, args, kwargs):
        return BOUND
    return WRITES if target._schema.is_mutable else FREE


def _overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """Those that a call without `out=` may mean."""
    found = [getattr(packet, name) for name in packet.overloads()]
    return [one for one in found if not any(given.is_out for given in one._schema.arguments)]


def acts(target: Any) -> bool:
    """True where a call does, or may do, more than to compute results, write arguments and draw
    random numbers."""
    if not isinstance(target, OpOverload):
        return is_registered(target)
    if target.namespace == TWINS:
        operator = operator_of(target)
        return operator is not None and acts(operator)
    silent = not target._schema.returns and not target._schema.is_mutable
    return target.namespace not in KNOWN or silent or is_check(target) or is_registered(target)


@functools.cache
def is_check(operator: OpOverload) -> bool:
    """True for torch's own operators that raise or do nothing."""
    name = operator._opname
    return operator.namespace in KNOWN and any(part in name for part in CHECKING)


def is_registered(target: Any) -> bool:
    """True for what torch.fx or torch.library has registered, for the program or for torch."""
    functions = fx_registry._side_effectful_functions
    names: tuple[str, ...] = ()
    if isinstance(target, OpOverload):
        if target in functions or target._overloadpacket in functions:
            return True
        names = target._name, target._schema.name
    elif isinstance(target, torch._ops.HigherOrderOperator):
        names = (f"{target.namespace}::{target.name()}",)
    elif not isinstance(target, Hashable):
        return False
    elif target in functions:
        return True
    return any(library_registry.find(name).effect.effect is not None for name in names)


def draws(
    func: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> bool:
    """True where the operator draws random numbers; attention may be without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    if args is None or "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return bool(args[place] if place < len(args) else (kwargs or {}).get("dropout_p", 0.0))
