"""What each operator does to metadata: a `Rule` per operator, facts of its operands and constants.

In: an operator with its arguments, tensors as facts. Out: an interned record. A trace is a list of
such records and of the numbers of their operands, so that its key costs next to nothing
(LazyTensor paper, section 4.1: a node records its shape and its constants).

Python numbers that only scale or shift are operands, not constants, except 0 and 1; `NUMBERS` has
the operators that take such a number as a tensor without a change of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from dynamo.base.errors import Signal
from dynamo.graph_operators.operator_effects import acts
from dynamo.lazy.values import FACTS
from dynamo.shapes.facts import Facts
from dynamo.shapes.fake import Fake, FakeWorld

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands in a rule's arguments for its n-th tensor."""

    number: int


@dataclass(frozen=True, slots=True)
class Number:
    """Stands in a rule's arguments for its n-th Python number, which is an input of the graph."""

    number: int
    kind: type


@dataclass(frozen=True, slots=True)
class New:
    """Stands in a rule's result for the n-th tensor that the operator makes."""

    number: int


@dataclass(eq=False, slots=True)
class Rule:
    """made: facts of the new tensors. shares: for each, the operand whose memory it shares, or -1.
    writes: the operands that are written. result: the operator's result with `New` and `Operand`
    in place of tensors. single: the result is one new tensor. dtype: of its numbers, as tensors.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: tuple[Facts, ...] = ()
    shares: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    result: Any = None
    single: bool = False
    refusal: str = ""
    numbers: int = 0
    operands: int = 0
    dtype: torch.dtype = torch.float64


@dataclass(eq=False, slots=True)
class Operator:
    """What is known of an operator whatever its arguments are. seeded: it draws random numbers.
    moves: it changes the sizes of its operand (`t_`). numbers: places of arguments that may be
    inputs of a graph. alias: its result is its operand."""

    func: Any
    seeded: bool
    moves: bool
    mutable: bool
    out: bool
    numbers: frozenset[int | str]
    written: tuple[tuple[int, str], ...] = field(default=())
    alias: bool = False


# Place of the argument (by position, then by name) that may be a tensor of no dimension instead.
NUMBERS: dict[str, tuple[int | str, ...]] = {
    "add.Tensor": (1, "alpha"), "add_.Tensor": (1, "alpha"),
    "sub.Tensor": (1, "alpha"), "sub_.Tensor": (1, "alpha"),
    "mul.Tensor": (1,), "mul_.Tensor": (1,), "div.Tensor": (1,), "div_.Tensor": (1,),
    "addcmul.default": ("value",), "addcmul_.default": ("value",),
    "addcdiv.default": ("value",), "addcdiv_.default": ("value",),
    "lerp.Scalar": (2,), "lerp_.Scalar": (2,),
    "_foreach_mul.Scalar": (1,), "_foreach_mul_.Scalar": (1,),
    "_foreach_div.Scalar": (1,), "_foreach_div_.Scalar": (1,),
    "_foreach_add.Scalar": (1,), "_foreach_add_.Scalar": (1,),
    "_foreach_sub.Scalar": (1,), "_foreach_sub_.Scalar": (1,),
    "_foreach_add.List": ("alpha",), "_foreach_add_.List": ("alpha",),
    "_foreach_lerp_.Scalar": (2,),
    "_foreach_mul.ScalarList": (1,), "_foreach_mul_.ScalarList": (1,),
    "_foreach_div.ScalarList": (1,), "_foreach_div_.ScalarList": (1,),
    "_foreach_add.ScalarList": (1,), "_foreach_add_.ScalarList": (1,),
    "_foreach_addcmul_.Scalar": (3,), "_foreach_addcdiv_.Scalar": (3,),
    "_foreach_addcmul_.ScalarList": (3,), "_foreach_addcdiv_.ScalarList": (3,),
}  # fmt: skip
FLOATS = (torch.float32, torch.float64)


def describe(func: Any) -> Operator:
    """What the operator's schema and tags say."""
    schema = func._schema
    written = tuple(
        (at, argument.name) for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )  # fmt: skip
    name = f"{func._opname}.{func._overloadname}" if func.namespace == "aten" else ""
    return Operator(
        func=func,
        seeded=torch.Tag.nondeterministic_seeded in func.tags,
        moves=torch.Tag.inplace_view in func.tags,
        mutable=schema.is_mutable,
        out=any(argument.is_out for argument in schema.arguments),
        numbers=frozenset(NUMBERS.get(name, ())),
        written=written,
    )


class Refused(Exception):
    """An argument is of no kind that a trace can hold."""


def make_rule(
    operator: Operator, args: Any, kwargs: Any, operands: list[Any], facts: list[Facts],
    lifts: bool,
) -> Rule:
    """The rule for these arguments; with a refusal where the operator has to run in eager.

    operands: the tensors among the arguments in the order of their places.
    """
    form = _Form(operator, lifts)
    template = tuple(form.of(at, arg) for at, arg in enumerate(args))
    named = {name: form.of(name, arg) for name, arg in kwargs.items()}
    rule = Rule(operator.func, template, named, numbers=form.numbers, operands=form.tensors)
    if acts(operator.func):
        rule.refusal = "it may have effects"
        return rule
    if form.numbers:
        rule.dtype = facts[0].dtype
    world = FakeWorld(FACTS)
    known: dict[int, Fake] = {}
    fakes = [
        known.setdefault(id(tensor), world.make(of))
        for tensor, of in zip(operands, facts, strict=True)
    ]
    turn = iter(fakes)
    try:
        given = [put(arg, lambda _: next(turn)) for arg in args]
        others = {name: put(arg, lambda _: next(turn)) for name, arg in kwargs.items()}
        result = world.dispatch(operator.func, tuple(given), others)
    except Signal as signal:
        rule.refusal = str(signal) or type(signal).__name__
        return rule
    except Exception as error:  # eager says whether it is the program's, in its own words
        rule.refusal = f"{type(error).__name__}: {error}"
        return rule
    if any(fake.facts is not of for fake, of in zip(fakes, facts, strict=True)):
        rule.refusal = "it changes the sizes of an operand"
        return rule
    _read_result(rule, result, fakes)
    _read_writes(rule, operator, args, kwargs, operands)
    return rule


def put(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The argument with each tensor in it changed, in the order of their places."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)([put(item, change) for item in value])
    return value


class _Form:
    """Makes a rule's arguments of real ones."""

    def __init__(self, operator: Operator, lifts: bool) -> None:
        self.operator, self.lifts = operator, lifts
        self.tensors = self.numbers = 0

    def of(self, place: int | str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors += 1
            return Operand(self.tensors - 1)
        if type(value) in (list, tuple):
            return type(value)([self.of(place, item) for item in value])
        if self.lifts and place in self.operator.numbers and is_free(value):
            self.numbers += 1
            return Number(self.numbers - 1, type(value))
        return value


def is_free(value: Any) -> bool:
    """True for a number that is an input of a graph: 0 and 1 are worth knowing."""
    return (type(value) is float or type(value) is int) and value != 0 and value != 1


def _read_result(rule: Rule, result: Any, fakes: list[Fake]) -> None:
    made: list[Facts] = []
    shares: list[int] = []

    def read(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return type(item)([read(part) for part in item])
        if type(item) is not Fake:
            return item
        for number, fake in enumerate(fakes):
            if fake is item:
                return Operand(number)
        made.append(item.facts)
        tokens = [fake.token for fake in fakes]
        shares.append(tokens.index(item.token) if item.token in tokens else -1)
        return New(len(made) - 1)

    rule.result = read(result)
    rule.made, rule.shares = tuple(made), tuple(shares)
    rule.single = type(rule.result) is New
    if any(facts.bits for facts in made):
        rule.refusal = "its result is a conjugate or a negative that is not computed"


def _read_writes(
    rule: Rule, operator: Operator, args: Any, kwargs: Any, operands: list[Any]
) -> None:
    written: list[int] = []
    numbers = {id(tensor): number for number, tensor in enumerate(operands)}
    for at, name in operator.written:
        value = args[at] if at < len(args) else kwargs.get(name)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                written.append(numbers[id(item)])
    rule.writes = tuple(written)
