"""Cheaper functions where the result is rounded to half precision, or to float8, anyway.

In: the stages of a launch. Out: the same, in which float32 operations that lead to nothing but
values of these dtypes go by the names of `RELAXED`: the device's own approximations, which are
some hundred times as exact as the rounding that follows. What is compared, before or after that
rounding, used as an index, or stored in float32 is computed as eager does.

And conversions to integers by cheaper operations that are exact: `whole_numbers`.

A value that leads to both is computed both ways: what is rounded has the bits that it would have in
a kernel without the other use, which may compute it again. Reductions are made once, then exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from inductor.codegen.triton.launch import Launch, Stage
from inductor.codegen.triton.spelling import HALVES, SUM_OF_EXP, TO_SMALL
from inductor.codegen.triton.whole_numbers import add_to_round
from inductor.ir.body import DECIDES, Op
from inductor.scheduler.assemble import drop_dead

ROUNDED = frozenset((*HALVES, *TO_SMALL))
PREFIX = "relaxed "  # of the names of cheaper operations
RELAXED = {
    "exp": "tl.exp2({0} * 1.4426950408889634)",
    "truediv": "({0} / {1})",
    "fraction": "k_quick_fraction({0}, {1})",
    "sigmoid": "k_quick_sigmoid({0})",
    "normal_cdf": "k_normal_cdf({0})",
    "silu": "k_quick_silu({0})",
    "one_plus_tanh": "k_one_plus_tanh({0})",
    "tanh_slope": "k_tanh_slope({0})",
    "softplus": "k_quick_softplus({0})",
    "tanh_of_softplus": "k_tanh_of_softplus({0})",
    "rounded_within": "k_rounded_within({0}, {1}, {2})",
}
# Operations whose results are no farther off than their operands.
KEEPING = frozenset(
    "add sub mul neg abs truediv maximum minimum where exp sigmoid sqrt rsqrt tanh erf".split()
)
KEEPING_REDUCTIONS = ("sum", "max", "min", SUM_OF_EXP)


def relax_stages(
    stages: Sequence[Stage], own: Collection[str], parts: Collection[str] = ()
) -> tuple[Stage, ...]:
    """See the top of the file. own: the locals of the launch. parts: what `rounded_parts` says of
    its buffers."""
    own = {*own, *parts}
    exact: set[str] = set()  # locals that a later stage wants as they are
    found = []
    for stage in reversed(stages):
        wants = _wants(stage, own, exact)
        exact |= _wanted(stage, own, wants)
        found.append(_relaxed(*_doubled(stage, wants, own, exact)))
    maxima, logs = set[str](), set[str]()
    summed = [_with_sums_of_exp(stage, maxima, logs) for stage in reversed(found)]
    name = f"{PREFIX}rounded_within"
    return tuple(replace(stage, ops=add_to_round(stage.ops, name)) for stage in summed)


def rounded_parts(launches: Sequence[Launch], parts: Collection[str]) -> frozenset[str]:
    """The buffers among `parts`, which lie between these launches of a kernel, of which all that is
    made is rounded to half precision: sums, mostly, of which each program computes a part."""
    exact: set[str] = set()
    for launch in reversed(launches):
        own = {local.name for local in launch.locals}.union(parts)
        for stage in reversed(launch.stages):
            exact |= _wanted(stage, own, _wants(stage, own, exact))
    return frozenset(parts) - exact


def _wanted(stage: Stage, own: Collection[str], wants: Sequence[set[bool]]) -> set[str]:
    """The buffers of `own` that the stage reads and wants as they are."""
    return {
        op.buffer for position, op in enumerate(stage.ops)
        if op.name == "load" and op.buffer in own and False in wants[position]
    }  # fmt: skip


def _with_sums_of_exp(stage: Stage, maxima: set[str], logs: set[str]) -> Stage:
    """The stage where exp(v - maximum), of float32, is only summed, alone or as a factor: the
    farther v is away, the less its rounding counts. So it is with exp(v - maximum - log), a
    softmax. maxima, logs: locals that hold such numbers; those of this stage are added."""
    ops = list(stage.ops)
    users: dict[int, list[int]] = {}
    for position, op in enumerate(ops):
        for arg in op.args:
            users.setdefault(arg, []).append(position)

    def are_sums(positions: Collection[int]) -> bool:
        return all(ops[at].name == "reduction" and ops[at].imm == "sum" for at in positions)

    greatest, logarithms, shifted = set[int](), set[int](), set[int]()
    for position, op in enumerate(stage.ops):
        is_number = op.name == "load" and not op.args
        if op.name == "reduction" and op.imm == "max" or is_number and op.buffer in maxima:
            greatest.add(position)
        elif op.name == "log" or is_number and op.buffer in logs:
            logarithms.add(position)
        elif op.name == "where" and op.args[2] in greatest and ops[op.args[1]].name == "constant":
            greatest.add(position)  # infinities, in logsumexp
        elif op.name == "store" and op.args[0] in greatest:
            maxima.add(op.buffer)
        elif op.name == "store" and op.args[0] in logarithms:
            logs.add(op.buffer)
        elif op.name == "sub" and (
            op.args[1] in greatest or op.args[0] in shifted and op.args[1] in logarithms
        ):
            shifted.add(position)
        elif op.name == "exp" and op.dtype is torch.float32 and op.args[0] in shifted and all(
            are_sums((at,)) or ops[at].name == "mul" and are_sums(users.get(at, ()))
            for at in users.get(position, ())
        ):
            ops[position] = replace(op, name=f"{PREFIX}exp")
    return replace(stage, ops=tuple(ops))


def _wants(stage: Stage, own: Collection[str], exact: Collection[str]) -> list[set[bool]]:
    """For each op, in which ways it is wanted: True where all that is made of it is rounded to half
    precision, False where it is wanted as it is."""
    wants: list[set[bool]] = [set() for _ in stage.ops]
    for position in range(len(stage.ops) - 1, -1, -1):
        op = stage.ops[position]
        wants[position] = wants[position] or {True}
        if op.name == "reduction" and False in wants[position]:
            wants[position] = {False}
        for at, arg in enumerate(op.args):
            wants[arg] |= {_frees(op, at, free, own, exact) for free in wants[position]}
    return wants


def _doubled(
    stage: Stage, wants: Sequence[set[bool]], own: Collection[str], exact: Collection[str]
) -> tuple[Stage, list[bool], dict[int, int]]:
    """The stage with an op for each way in which one is wanted; for each op whether all that is
    made of it is rounded; and the exact op for each that is its like in the other way."""
    ops: list[Op] = []
    free: list[bool] = []
    twins: dict[int, int] = {}
    place: dict[tuple[int, bool], int] = {}
    for position, op in enumerate(stage.ops):
        for way in sorted(wants[position]):
            ways = [_frees(op, at, way, own, exact) for at in range(len(op.args))]
            args = tuple(place[pair] for pair in zip(op.args, ways, strict=True))
            if way and len(wants[position]) == 2:
                twins[len(ops)] = place[position, False]
            place[position, way] = len(ops)
            if op.name == "reduction":
                place[position, True] = len(ops)
            ops.append(replace(op, args=args))
            free.append(way)
    return replace(stage, ops=tuple(ops)), free, twins


def _without_likes(ops: Sequence[Op], twins: Mapping[int, int]) -> list[Op]:
    """The ops where nothing uses one that computes what its twin does."""
    same = list(range(len(ops)))
    found: list[Op] = []
    for position, op in enumerate(ops):
        found.append(replace(op, args=tuple(same[arg] for arg in op.args)))
        twin = twins.get(position)
        if twin is not None and found[position] == found[twin]:
            same[position] = twin
    return found


def _frees(
    op: Op, at: int, free: bool, own: Collection[str], exact: Collection[str]
) -> bool:
    """Whether an operand need not be exact. free: the same of the result."""
    if op.name == "store":
        return op.dtype in ROUNDED or (op.buffer in own and op.buffer not in exact)
    if op.name == "to_dtype":
        return op.dtype in ROUNDED and op.imm != DECIDES or (op.dtype is torch.float32 and free)
    if op.name == "reduction":
        return free and op.imm in KEEPING_REDUCTIONS and len(op.args) == 1
    return free and op.name in KEEPING and not (op.name == "where" and at == 0)


def _relaxed(stage: Stage, free: Sequence[bool], twins: Mapping[int, int]) -> Stage:
    ops = list(stage.ops)
    uses = Counter(arg for op in ops for arg in op.args)
    for position, op in enumerate(stage.ops):
        if not free[position] or op.dtype is not torch.float32:
            continue
        if op.name == "mul":
            _relax_product(ops, position, uses)
        elif op.name in ("add", "sub"):
            _relax_tanh(ops, position)
        elif op.name in ("log1p", "tanh"):
            _relax_softplus(ops, position, twins)
        elif op.name == "truediv" and _is_silu(stage.ops, op):
            ops[position] = replace(op, name=f"{PREFIX}silu", args=op.args[:1])
        elif op.name == "truediv" and _is_above_one(ops, op.args[1]):
            ops[position] = replace(op, name=f"{PREFIX}fraction")
        elif op.name in RELAXED:
            ops[position] = replace(op, name=f"{PREFIX}{op.name}")
    return replace(stage, ops=drop_dead(_without_likes(ops, twins) if twins else ops))


def _relax_product(ops: list[Op], position: int, uses: Mapping[int, int]) -> None:
    """What GELU and its derivative are made of: (1 + erf(v / sqrt(2))) / 2, and v times that."""
    op = ops[position]
    for one, other in (op.args, op.args[::-1]):
        value = _argument_of_erf(ops, other)
        if value is None:
            continue
        if _is_number(ops[one], 0.5):
            ops[position] = replace(op, name=f"{PREFIX}normal_cdf", args=(value,))
            return
        if uses[other] == 1 and _scaled(ops, one, 0.5) == value:
            ops[other] = replace(ops[other], name=f"{PREFIX}normal_cdf", args=(value,))
            ops[position] = replace(op, args=(value, other))
            return


def _is_above_one(ops: Sequence[Op], position: int) -> bool:
    """Whether a value is 1 + exp(v)."""
    op = ops[position]
    return op.name == "add" and any(
        _is_number(ops[one], 1.0) and ops[other].name in ("exp", f"{PREFIX}exp")
        for one, other in (op.args, op.args[::-1]))


def _relax_tanh(ops: list[Op], position: int) -> None:
    """1 + tanh(v) and 1 - tanh(v) ** 2, of which GELU and its derivative are made in their other
    form: what tanh is off near zero does not show in them."""
    op = ops[position]
    one, other = op.args if op.name == "sub" or _is_number(ops[op.args[0]], 1.0) else op.args[::-1]
    if not _is_number(ops[one], 1.0):
        return
    inner = ops[other]
    if op.name == "add" and inner.name == "tanh":
        ops[position] = replace(op, name=f"{PREFIX}one_plus_tanh", args=inner.args)
    elif op.name == "sub" and inner.name == "mul" and inner.args[0] == inner.args[1]:
        root = ops[inner.args[0]]
        if root.name == "tanh":
            ops[position] = replace(op, name=f"{PREFIX}tanh_slope", args=root.args)


def _relax_softplus(ops: list[Op], position: int, twins: Mapping[int, int]) -> None:
    """log(1 + exp(v)), and tanh of it, which is mish's factor."""
    op = ops[position]
    value = _argument_of_softplus(ops, position if op.name == "log1p" else op.args[0], twins)
    if value is not None:
        name = "softplus" if op.name == "log1p" else "tanh_of_softplus"
        ops[position] = replace(op, name=f"{PREFIX}{name}", args=(value,))


def _argument_of_softplus(
    ops: Sequence[Op], position: int, twins: Mapping[int, int]
) -> int | None:
    """Of log1p(exp(v)), or of v itself where that is above 20: the position of v."""
    op = ops[position]
    if op.dtype is not torch.float32:
        return None
    if op.name == "where":
        bound, value = ops[op.args[0]], twins.get(op.args[1], op.args[1])
        if bound.name != "gt" or not _is_number(ops[bound.args[1]], 20.0):
            return None
        soft = _argument_of_softplus(ops, op.args[2], twins)
        return soft if soft == value == bound.args[0] else None
    if op.name == f"{PREFIX}softplus":
        return op.args[0]
    if op.name == "log1p" and ops[op.args[0]].name == "exp":
        return ops[op.args[0]].args[0]
    return None


def _is_silu(ops: Sequence[Op], op: Op) -> bool:
    """Whether a quotient is v / (1 + exp(-v))."""
    value, below = op.args
    if ops[below].name != "add":
        return False
    for one, other in (ops[below].args, ops[below].args[::-1]):
        if _is_number(ops[one], 1.0) and ops[other].name == "exp":
            power = ops[ops[other].args[0]]
            return power.name == "neg" and power.args == (value,)
    return False


def _argument_of_erf(ops: Sequence[Op], position: int) -> int | None:
    """Of 1 + erf(v / sqrt(2)): the position of v."""
    op = ops[position]
    if op.name != "add" or op.dtype is not torch.float32:
        return None
    for one, other in (op.args, op.args[::-1]):
        if _is_number(ops[one], 1.0) and ops[other].name in ("erf", f"{PREFIX}erf"):
            return _scaled(ops, ops[other].args[0], math.sqrt(0.5))
    return None


def _scaled(ops: Sequence[Op], position: int, factor: float) -> int | None:
    """Of v times the factor: the position of v."""
    op = ops[position]
    if op.name != "mul":
        return None
    for one, other in (op.args, op.args[::-1]):
        if _is_number(ops[one], factor):
            return other
    return None


def _is_number(op: Op, value: float) -> bool:
    return op.name == "constant" and isinstance(op.imm, int | float) and abs(op.imm - value) < 1e-7
