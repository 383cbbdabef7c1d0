"""Operators in whose place others compute, where a number among their arguments changes.

In: an operator of a captured graph, of whose arguments some are numbers that become tensors of no
dimension. Out: a function that computes the same with tensors, in the dtype in which eager
computes: float32 for half precision, so that a result is rounded once. The tables say which
arguments may be such numbers; where an operator has no rule, it is asked for each value.

Rounding: `pow` has eager's special cases; `add` with `alpha` rounds twice, where eager's kernels
may round once.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from inductor.dynamic_shapes.numbers.functions import (
    COMPARISONS,
    FILLS,
    FUNCTIONS,
    WHOLE,
    Goal,
    Number,
)

HALF = (torch.float16, torch.bfloat16)
REAL = (*HALF, torch.float32, torch.float64, torch.int64, torch.bool)
READ = frozenset((*REAL, torch.int8, torch.int16, torch.int32, torch.uint8))
# Names of operators and methods by that of their function.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "add": ("__add__", "__radd__"), "mul": ("multiply", "__mul__", "__rmul__"),
    "sub": ("subtract", "__sub__"), "rsub": ("__rsub__",),
    "div": ("truediv", "divide", "true_divide", "__truediv__"), "pow": ("__pow__",),
    "clamp": ("clip",), "floor_divide": ("floordiv", "__floordiv__"),
    "remainder": ("mod", "__mod__"), "gt": ("greater", "__gt__"), "lt": ("less", "__lt__"),
    "ge": ("greater_equal", "__ge__"), "le": ("less_equal", "__le__"), "eq": ("__eq__",),
    "ne": ("not_equal", "__ne__"), "rdiv": ("__rtruediv__", "__rdiv__"), "rpow": ("__rpow__",),
    "setitem": ("__setitem__",),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """name: of the function. in_place: whether the first argument is written. each: for lists."""

    name: str
    in_place: bool = False
    each: bool = False


def _find_targets() -> Mapping[Any, Rule]:
    """The rule of each function, and of each method's name."""
    rules: dict[Any, Rule] = {}
    for name in FUNCTIONS:
        for known in (name, *OTHER_NAMES.get(name, ())):
            rules[known] = Rule(name)
            if not known.startswith("__"):
                rules[f"{known}_"] = Rule(name, in_place=True)
            for module in (torch, functional, operator):
                if hasattr(module, known):
                    rules.setdefault(getattr(module, known), Rule(name))
                if hasattr(module, f"{known}_"):
                    rules.setdefault(getattr(module, f"{known}_"), Rule(name, in_place=True))
            if hasattr(operator, f"i{known}"):
                rules[getattr(operator, f"i{known}")] = Rule(name, in_place=True)
        for end in ("", "_"):
            many = getattr(torch, f"_foreach_{name}{end}", None)
            if many is not None:
                rules[many] = Rule(name, in_place=bool(end), each=True)
    for other in ("where", "elu_", functional.elu_):  # methods and functions with other parameters
        rules.pop(other, None)
    return MappingProxyType(rules)


RULES = _find_targets()


def rule_of(user: fx.Node, number: fx.Node) -> Rule | None:
    """The rule by which an operator takes a tensor in place of this number; None if it has none."""
    rule = RULES.get(user.target) if user.op in ("call_function", "call_method") else None
    if rule is None or "out" in user.kwargs or user.kwargs.get("requires_grad"):
        return None
    first = bool(user.args) and user.args[0] is number
    if first and (rule.each or rule.name == "div" and user.target is not operator.truediv):
        return None  # `torch.div` divides where the operator multiplies by a reciprocal
    function = FUNCTIONS[rule.name]
    given = _bound(function.compute, rule, user)
    if given is None or given.get("inplace"):  # backward in place looks at the number
        return None
    for name, value in given.items():
        if name not in function.numbers and number in _nodes_in(value):
            return None
        if name in function.numbers and value is not number and number in _nodes_in(value):
            if not (rule.each and isinstance(value, (list, tuple))):
                return None
    goals = _tensors_of(user.meta.get("example_value"))
    if rule.each and not rule.in_place and any(goal.requires_grad for goal in goals):
        return None  # each of eager's results has a history if one has
    if rule.in_place or rule.name == "setitem":
        goals = _tensors_of(_value(user.args[0]))
    return rule if goals and all(_fits(rule, user, goal) for goal in goals) else None


def _bound(compute: Callable[..., Any], rule: Rule, user: fx.Node) -> dict[str, Any] | None:
    kwargs = dict(user.kwargs)
    for name in ("scalar", "scalars", "tensors1", "self") if rule.each else ():
        if name in kwargs:
            return None
    try:
        return dict(inspect.signature(compute).bind(None, *user.args, **kwargs).arguments)
    except TypeError:
        return None


def _nodes_in(value: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return nodes


def _value(node: Any) -> Any:
    if isinstance(node, (list, tuple)):
        return [_value(item) for item in node]
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def _fits(rule: Rule, user: fx.Node, goal: torch.Tensor) -> bool:
    """False for dtypes of which eager asks the number, or that are not computed here."""
    inputs = [_value(node) for node in user.all_input_nodes]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    numbers = [value for value in inputs if type(value) in (int, float)]
    if goal.dtype not in REAL or any(tensor.dtype not in READ for tensor in tensors):
        return False
    if rule.name in COMPARISONS:
        return True
    if rule.name in FILLS:  # a float is cut, or too large
        return goal.dtype is not torch.bool and not (
            float in map(type, numbers) and not goal.is_floating_point())
    if rule.in_place and float in map(type, numbers) and not goal.is_floating_point():
        return False  # eager raises
    return goal.is_floating_point() or rule.name in WHOLE


class WithNumbers:
    """Calls the function of a rule in an operator's place.

    numbers: the paths of arguments that are numbers: (position or name, place in a list or None).
    """

    def __init__(self, user: fx.Node, rule: Rule, free: Mapping[fx.Node, Any]) -> None:
        self.rule = rule
        self.__name__ = self.__qualname__ = f"{rule.name}_with_numbers"
        self.compute = FUNCTIONS[rule.name].compute
        known = [*enumerate(user.args), *user.kwargs.items()]
        self.numbers = frozenset(
            (at, place)
            for at, value in known
            for place, item in (
                enumerate(value) if isinstance(value, (list, tuple)) else ((None, value),)
            )
            if isinstance(item, fx.Node) and item in free
        )
        goals = _tensors_of(user.meta.get("example_value"))
        self.dtypes = tuple(goal.dtype for goal in goals)
        self.strides = tuple(goal.stride() for goal in goals)

    def text_in_keys(self) -> str:
        """Equal for what computes the same (`inductor/cache/graph_key.py`)."""
        rule = (self.rule.name, self.rule.each, self.rule.in_place)
        numbers = sorted(self.numbers, key=repr)
        return f"{type(self).__name__}({rule}, {numbers}, {self.dtypes}, {self.strides})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [self._marked(at, value) for at, value in enumerate(args)]
        named = {name: self._marked(name, value) for name, value in kwargs.items()}
        if not self.rule.each:
            return self._compute(0, given, named)
        count = len(args[0])
        results = [
            self._compute(
                at, [_item(value, at) for value in given],
                {name: _item(value, at) for name, value in named.items()},
            )
            for at in range(count)
        ]  # fmt: skip
        return results if self.rule.in_place else tuple(results)

    def _marked(self, at: int | str, value: Any) -> Any:
        if (at, None) in self.numbers:
            return Number(value)
        if isinstance(value, (list, tuple)) and any(path[0] == at for path in self.numbers):
            return [
                Number(item) if (at, place) in self.numbers else item
                for place, item in enumerate(value)
            ]
        return value

    def _compute(self, at: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        written = args[0] if self.rule.in_place or self.rule.name == "setitem" else None
        dtype = self.dtypes[at] if written is None else written.dtype
        held = torch.float32 if dtype in HALF else dtype
        if self.rule.name in COMPARISONS:
            held = _compared(args)
        numbers = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, Number))
        goal = Goal(dtype, held, next(numbers).value.device)
        result = self.compute(goal, *args, **kwargs)
        if self.rule.name == "setitem":
            return None
        result = result.to(dtype)
        return laid_out(result, self.strides[at]) if written is None else written.copy_(result)


def laid_out(result: torch.Tensor, strides: tuple[Any, ...]) -> torch.Tensor:
    """The tensor with the strides of eager's result; as it is where they are not known yet."""
    if any(type(step) is not int for step in strides) or result.stride() == strides:
        return result
    made = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return made.copy_(result)


def _item(value: Any, at: int) -> Any:
    return value[at] if isinstance(value, (list, tuple)) else value


def _compared(args: Sequence[Any]) -> torch.dtype:
    """The dtype in which eager compares two values."""
    kinds = [1 if isinstance(arg, Number) and arg.is_int else 1.0 if isinstance(arg, Number)
             else arg for arg in args]  # fmt: skip
    return torch.result_type(*kinds)
