"""Recording: one operator that a program calls becomes one step of the present trace.

In: what `__torch_dispatch__` gets, below autograd and autocast. Out: lazy tensors without values.
What can't be recorded ends the trace and runs in eager: looks at values, results whose sizes depend
on values, operators that nobody describes (LazyTensor paper, sections 3 and 4.5).

Random numbers are drawn at once, so that a generator is always in the state that it has in eager.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from dynamo.lazy import draws, replay
from dynamo.lazy.eager import GRADED, run_eagerly
from dynamo.lazy.rules import FLOATS, Operator, Rule, describe, is_free, make_rule, put
from dynamo.lazy.tensor import LazyTensor, wrap
from dynamo.lazy.trace import Trace
from dynamo.lazy.values import facts_of, is_plain, is_private
from dynamo.shapes.facts import Facts

aten = torch.ops.aten
LOCK = threading.RLock()
OPERATORS: dict[Any, Operator] = {}
RULES: dict[tuple[Any, ...], Rule] = {}
MOST_RULES = 1 << 16
BUSY = [False]  # a rule is being made, by whoever has the lock: its looks are not the program's

TRUE, FALSE, SYMBOLIC_INT, SYMBOLIC_FLOAT, LIST, FLOAT, NAMED = (object() for _ in range(7))
ALIASES = frozenset((aten.detach.default, aten.alias.default))
LOOKS = frozenset((aten._local_scalar_dense.default, aten.equal.default))
CONSTANTS = frozenset((int, str, type(None), torch.dtype, torch.layout, torch.device,
                       torch.memory_format))  # fmt: skip


class Unrecordable(Exception):
    """The call has to run in eager; the text says why."""


class Call:
    """The arguments of one call, read once. key: of its rule. operands: the tensors."""

    __slots__ = ("facts", "key", "lifted", "numbers", "operands", "operator", "ordinary")

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.key: list[Any] = [operator]
        self.operands: list[torch.Tensor] = []
        self.facts: list[Facts] = []
        self.numbers: list[float] = []
        self.lifted: bool | None = None
        self.ordinary = False

    def read(self, place: int | str, arg: Any) -> None:
        kind = type(arg)
        if kind is LazyTensor:
            facts = arg._lazy.facts
            self.operands.append(arg)
            self.facts.append(facts)
            self.key.append(facts)
        elif kind is bool:
            self.key.append(TRUE if arg else FALSE)
        elif kind is float or kind is int:
            self._read_number(place, arg, kind)
        elif kind in CONSTANTS:
            self.key.append(arg)
        elif kind is list or kind is tuple or kind is torch.Size:
            self.key.append(LIST)
            self.key.append(len(arg))
            for item in arg:
                if type(item) is int and place not in self.operator.numbers:
                    self.key.append(item)
                else:
                    self.read(place, item)
        elif isinstance(arg, torch.Tensor):
            self._read_ordinary(arg)
        else:
            raise Unrecordable(f"an argument is a {kind.__name__}")

    def _read_number(self, place: int | str, arg: Any, kind: type) -> None:
        if place in self.operator.numbers and is_free(arg) and self.lifts():
            self.numbers.append(arg)
            self.key.append(SYMBOLIC_FLOAT if kind is float else SYMBOLIC_INT)
        elif kind is float:  # 0.0 and -0.0 are equal, and not the same; and 1.0 is not 1
            self.key.append(FLOAT)
            self.key.append(arg.hex())
        else:
            self.key.append(arg)

    def _read_ordinary(self, arg: torch.Tensor) -> None:
        if isinstance(arg, LazyTensor):
            raise Unrecordable("a class that is made of lazy tensors")
        if not is_plain(arg):
            raise Unrecordable(f"a tensor is a {type(arg).__name__} of layout {arg.layout}")
        self.ordinary = True
        facts = facts_of(arg)
        self.operands.append(arg)
        self.facts.append(facts)
        self.key.append(facts)

    def lifts(self) -> bool:
        """Whether a tensor of no dimension may stand for a number: all operands have the dtype of
        the result, and the number is rounded to that first, as eager does."""
        if self.lifted is None:
            self.lifted = bool(self.facts) and all(
                facts.dtype is self.facts[0].dtype and facts.dtype in FLOATS for facts in self.facts
            )  # fmt: skip
            self.key.append(TRUE if self.lifted else FALSE)
        return self.lifted


def dispatch(
    recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool
) -> Any:
    """Records a call, or runs it. inside: in a mode, in which all writes to ordinary tensors are
    seen, so that a trace may read their memory later."""
    operator = OPERATORS.get(func)
    if operator is None:
        operator = OPERATORS[func] = describe(func)
        operator.alias = func in ALIASES
    if func.namespace == "profiler":
        replay.call_was(replay.SKIP)
        return func(*args, **kwargs)
    with LOCK:
        if operator.alias and type(args[0]) is LazyTensor:
            value = args[0]._lazy
            replay.aliased(value.index if value.trace is recorder.trace else None)
            return wrap(value)
        call = Call(operator)
        try:
            for at, arg in enumerate(args):
                if type(arg) is LazyTensor:  # as `read` does, without its call
                    facts = arg._lazy.facts
                    call.operands.append(arg)
                    call.facts.append(facts)
                    call.key.append(facts)
                else:
                    call.read(at, arg)
            for name, arg in kwargs.items():
                call.key.append(NAMED)
                call.key.append(name)
                call.read(name, arg)
            if call.ordinary or not call.operands or operator.seeded or operator.out:
                early = _special(recorder, call, args, kwargs, inside)
                if early is not NotImplemented:
                    return early
            return _record(recorder, call, args, kwargs, inside)
        except Unrecordable as reason:
            return run_eagerly(recorder, func, args, kwargs, str(reason), func in LOOKS)


def _special(recorder: Any, call: Call, args: Any, kwargs: Any, inside: bool) -> Any:
    """What runs at once, because nothing is to be gained or lost: work on tensors of other devices,
    on single numbers of the host, and random numbers."""
    func = call.operator.func
    if call.operator.out:
        raise Unrecordable("it writes into out=")
    if func is aten.lift_fresh.default:
        replay.call_was(replay.SKIP)
        return args[0]
    if inside and _stays_outside(recorder, call, kwargs):
        replay.call_was(replay.OUTSIDE)
        return func(*args, **kwargs)
    if call.operator.seeded:
        return draws.draw(recorder, call.operator.func, args, kwargs)
    return NotImplemented


def _stays_outside(recorder: Any, call: Call, kwargs: dict[str, Any]) -> bool:
    if not call.operands:
        device = kwargs.get("device")
        kind = torch.device("cpu" if device is None else device).type
        size = call.key[3:3 + call.key[2]] if call.key[1:2] == [LIST] else (2,)
        numel = 1
        for extent in size:
            numel *= extent if type(extent) is int else 2
        return not recorder.takes(kind) or (numel <= 1 and kind == "cpu")
    if any(type(tensor) is LazyTensor for tensor in call.operands):
        return False
    wanted = kwargs.get("device")
    devices = {facts.device.type for facts in call.facts}
    if wanted is not None:
        devices.add(torch.device(wanted).type)
    if not any(map(recorder.takes, devices)):
        return True
    adopted = recorder.trace.adopted
    return devices == {"cpu"} and all(
        facts.numel() <= 1 and id(tensor) not in adopted and not recorder.reads(tensor)
        for tensor, facts in zip(call.operands, call.facts, strict=True)
    )


def rule_of(call: Call, args: Any, kwargs: Any) -> Rule:
    """The rule of a call."""
    default = torch.get_default_dtype()
    if default is not torch.float32:
        call.key.append(default)
    key = tuple(call.key)
    rule = RULES.get(key)
    if rule is None:
        lifts = bool(call.lifted)
        BUSY[0] = True
        try:
            rule = make_rule(call.operator, args, kwargs, call.operands, call.facts, lifts)
        finally:
            BUSY[0] = False
        if len(RULES) >= MOST_RULES:
            RULES.clear()
        RULES[key] = rule
    return rule


def _record(recorder: Any, call: Call, args: Any, kwargs: Any, inside: bool) -> Any:
    if call.operator.func in GRADED:
        raise Unrecordable("what it makes depends on whether gradients are enabled")
    if call.operator.moves:
        return _move(recorder, call, args, kwargs)
    rule = rule_of(call, args, kwargs)
    if rule.refusal:
        raise Unrecordable(rule.refusal)
    if not rule.made and not rule.writes:
        replay.recorded(None, recorder.trace, 0, [], [])
        return rule.result
    if call.ordinary:
        copied = _copied(recorder, call, rule, args, kwargs, inside)
        if copied is not None:
            return dispatch(recorder, call.operator.func, *copied, inside)
    recorder.activate()
    default = torch.get_default_dtype()
    if recorder.trace.dtype is not default:
        recorder.cut("the default dtype has changed")
        recorder.trace.dtype = default
    trace: Trace = recorder.trace
    inputs, operands = len(trace.inputs), []
    for number, tensor in enumerate(call.operands):
        if type(tensor) is LazyTensor:
            value = tensor._lazy
        else:
            value = recorder.adopt(tensor, call.facts[number])
        if value.trace is not trace:
            recorder.enter(value, inside)
        operands.append(value.index)
    trace.numbers += call.numbers
    values = trace.add(rule, operands)
    if call.ordinary and rule.writes:
        trace.writes_ordinary = True
    replay.recorded(rule, trace, inputs, operands, values)
    if len(trace.rules) >= recorder.longest:
        recorder.cut("the trace is long")
        replay.call_was(replay.SKIP)
    if rule.single:
        return wrap(values[0])
    return draws.fill(rule.result, values, call.operands)


def _copied(
    recorder: Any, call: Call, rule: Rule, args: Any, kwargs: Any, inside: bool
) -> tuple[Any, Any] | None:
    """The arguments with copies of ordinary tensors whose memory others may write while the trace
    waits: all outside of a mode, inside those that NumPy sees. None where there are none."""
    seen = {
        id(tensor): number for number, tensor in enumerate(call.operands)
        if type(tensor) is not LazyTensor
        and not (inside and is_private(tensor))
    }  # fmt: skip
    if not seen:
        return None
    if any(number in rule.writes for number in seen.values()):
        raise Unrecordable("it writes into memory that others see")
    copies: dict[int, LazyTensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in seen:
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = recorder.copy(tensor)
        return copies[id(tensor)]

    return (
        tuple(put(arg, copy) for arg in args),
        {name: put(arg, copy) for name, arg in kwargs.items()},
    )


def _move(recorder: Any, call: Call, args: Any, kwargs: Any) -> Any:
    """`t_` and its like: a view, whose value the tensor has from now on."""
    tensor = args[0]
    func = call.operator.func
    packet = getattr(torch.ops.aten, func._opname.removesuffix("_"), None)
    overload = "int" if func is aten.transpose_.default else func._overloadname
    view = getattr(packet, overload, None)
    if type(tensor) is not LazyTensor or view is None:
        raise Unrecordable("it changes the sizes of its operand")
    moved = dispatch(recorder, view, args, kwargs, False)
    with torch._C._DisableTorchDispatch():
        func(*args, **kwargs)
    tensor._lazy = moved._lazy
    replay.moved()
    return tensor
