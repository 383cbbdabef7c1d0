"""A trace as a `torch.fx` graph, for any backend; and the same trace run operator by operator.

In: the steps of a trace (rules and the numbers of their operands). Out: a graph that writes where
the program wrote (backends functionalize it, `dynamo.aot`), whose last input is one tensor of all
Python numbers (LazyTensor paper, section 4.1); or the values themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.lazy.rules import New, Number, Operand, Rule
from dynamo.shapes.facts import Facts, contiguous_stride

aten = torch.ops.aten


def steps(rules: Sequence[Rule], wires: Sequence[int]) -> list[tuple[Rule, list[int]]]:
    """Each rule with the numbers of its operands."""
    found, at = [], 0
    for rule in rules:
        found.append((rule, list(wires[at:at + rule.operands])))
        at += rule.operands
    return found


def numbering(
    rules: Sequence[Rule], wires: Sequence[int], places: Sequence[int]
) -> list[tuple[Rule, list[int], list[int]]]:
    """Each rule with the numbers of its operands and of what it makes."""
    taken = set(places)
    following = 0
    found = []
    for rule, operands in steps(rules, wires):
        made = []
        for _ in rule.made:
            while following in taken:
                following += 1
            made.append(following)
            following += 1
        found.append((rule, operands, made))
    return found


def insert(value: Any, operands: Callable[[int], Any], numbers: Callable[[Number], Any]) -> Any:
    """A rule's argument with tensors and numbers in their places."""
    if type(value) is Operand:
        return operands(value.number)
    if type(value) is Number:
        return numbers(value)
    if type(value) in (list, tuple):
        return type(value)([insert(item, operands, numbers) for item in value])
    return value


def take(result: Any, form: Any, put: Callable[[int, Any], None]) -> None:
    """Calls `put(number, tensor)` for each new tensor of an operator's result."""
    if type(form) is New:
        put(form.number, result)
    elif isinstance(form, (list, tuple)):
        for part, of in zip(result, form, strict=True):
            take(part, of, put)


class Builder:
    """Makes the graph of a trace."""

    def __init__(self, places: Sequence[int], numbers: int) -> None:
        self.graph = fx.Graph()
        self.nodes: dict[int, Any] = {}
        self.first = 0
        for place in places:
            self.nodes[place] = self.graph.placeholder(f"input_{place}")
        self.packed = self.graph.placeholder("numbers") if numbers else None
        self.known: dict[tuple[int, torch.dtype], fx.Node] = {}
        self.spare: list[fx.Node] = []

    def share(self, pairs: Sequence[tuple[int, int]], facts: dict[int, Facts]) -> None:
        """Inputs that share memory become views of the one that has all of it: a backend knows
        what a write to one of them does to the others."""
        groups: dict[int, set[int]] = {}
        for first, other in pairs:
            groups.setdefault(first, {first}).add(other)
        for group in groups.values():
            whole = next((index for index in sorted(group) if _is_whole(facts, index, group)), None)
            for index in sorted(group - {whole}):
                view = None if whole is None else self._view(facts[whole], facts[index], whole)
                if view is not None:
                    self.spare.append(self.nodes[index])
                    self.nodes[index] = view

    def _view(self, base: Facts, facts: Facts, whole: int) -> fx.Node | None:
        node = self.nodes[whole]
        if base.dtype is not facts.dtype or base.bits or facts.bits:
            return None
        if facts.size == base.size[::-1] and facts.stride == base.stride[::-1]:
            order = list(range(len(base.size)))[::-1]
            return self.call(aten.permute.default, node, order)
        if facts.numel() == base.numel() and facts.stride == contiguous_stride(facts.size):
            return self.call(aten.view.default, node, list(facts.size))
        if facts is base:
            return self.call(aten.alias.default, node)
        return self.call(aten.as_strided.default, node, list(facts.size), list(facts.stride),
                         facts.offset)  # fmt: skip

    def call(self, func: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A node of the graph."""
        return self.graph.call_function(func, args, kwargs)

    def add(self, rule: Rule, operands: list[int], made: list[int]) -> None:
        """The nodes of one step."""
        def node_of(number: int) -> Any:
            return self.nodes[operands[number]]

        def number_of(number: Number) -> fx.Node:
            return self._number(self.first + number.number, rule.dtype)

        args = insert(rule.args, node_of, number_of)
        kwargs = {name: insert(arg, node_of, number_of) for name, arg in rule.kwargs.items()}
        if rule.numbers:
            result = spell(self, rule.func, args, kwargs)
            take(result, rule.result, lambda n, node: self.nodes.__setitem__(made[n], node))
        else:
            result = self.call(_function(rule), *args, **kwargs)
            self._pick(result, rule.result, made)
        self.first += rule.numbers

    def _pick(self, node: fx.Node, form: Any, made: list[int]) -> None:
        if type(form) is New:
            self.nodes[made[form.number]] = node
        elif isinstance(form, (list, tuple)):
            for at, part in enumerate(form):
                if type(part) is New or isinstance(part, (list, tuple)):
                    self._pick(self.call(operator.getitem, node, at), part, made)

    def _number(self, at: int, dtype: torch.dtype) -> fx.Node:
        key = at, dtype
        if key not in self.known:
            assert self.packed is not None
            one = self.call(aten.select.int, self.packed, 0, at)
            if dtype is not torch.float64:
                one = self.call(aten._to_copy.default, one, dtype=dtype)
            self.known[key] = one
        return self.known[key]


def _is_whole(facts: dict[int, Facts], index: int, group: set[int]) -> bool:
    """Whether a tensor is dense, and the others of its group lie within it."""
    mine = facts[index]
    dense = mine.offset == 0 and mine.stride == contiguous_stride(mine.size)
    return dense and all(facts[other].nbytes <= mine.nbytes for other in group)


def _function(rule: Rule) -> Any:
    """What the graph calls. Of a tensor out of nothing, torch's own function: functionalization
    sees it, and not the operator, which has no operand to bring it in."""
    func = rule.func
    if rule.operands or func.namespace != "aten":
        return func
    return getattr(torch, func._opname, func)


def spell(builder: Builder, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator that takes a number, in operators that take it as a tensor; its result."""
    name = func._opname
    if name.startswith("_foreach_"):
        return _spell_list(builder, name.removeprefix("_foreach_"), args, kwargs)
    return _spell_one(builder, name, args, kwargs)


def _spell_list(builder: Builder, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operator for each item, in turn."""
    count = len(args[0])

    def item(arg: Any, at: int) -> Any:
        return arg[at] if isinstance(arg, (list, tuple)) and len(arg) == count else arg

    results = []
    for at in range(count):
        given = [item(arg, at) for arg in args]
        named = dict(kwargs)
        if name.startswith(("addcmul", "addcdiv")):
            named["value"] = given.pop()
        results.append(_spell_one(builder, name, given, named))
    return results


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _spell_one(builder: Builder, name: str, args: Any, kwargs: dict[str, Any]) -> fx.Node:
    call = builder.call
    base, inplace = name.removesuffix("_"), name.endswith("_")
    if base in ("addcmul", "addcdiv"):
        first = call(aten.mul.Tensor, args[1], kwargs["value"])
        last = aten.mul.Tensor if base == "addcmul" else aten.div.Tensor
        args, base = (args[0], call(last, first, args[2])), "add"
    elif "alpha" in kwargs:
        factors = sorted((args[1], kwargs["alpha"]), key=lambda factor: not _is_node(factor))
        args = (args[0], call(aten.mul.Tensor, *factors))
    packet = getattr(aten, base + ("_" if inplace else ""))
    return call(packet.Tensor, *args)


def build(
    rules: Sequence[Rule], wires: Sequence[int], places: Sequence[int], live: Sequence[int],
    pairs: Sequence[tuple[int, int]] = (), facts: dict[int, Facts] | None = None,
) -> tuple[fx.GraphModule, list[int]]:
    """The graph of a trace that returns the tensors of these numbers, and which of the trace's
    inputs it takes. pairs: inputs that share memory; facts: of the inputs."""
    builder = Builder(places, sum(rule.numbers for rule in rules))
    if pairs and facts:
        builder.share(pairs, facts)
    for rule, operands, made in numbering(rules, wires, places):
        builder.add(rule, operands, made)
    builder.graph.output(tuple(builder.nodes[index] for index in live))
    inputs = [node for node in builder.graph.nodes if node.op == "placeholder"]
    taken = [at for at, node in enumerate(inputs) if node not in builder.spare]
    for node in builder.spare:
        builder.graph.erase_node(node)
    return fx.GraphModule(torch.nn.Module(), builder.graph), taken


def interpret(
    rules: Sequence[Rule], wires: Sequence[int], places: Sequence[int], inputs: list[torch.Tensor],
    numbers: Sequence[float], keep: Callable[[int, torch.Tensor], None],
) -> None:
    """Runs the steps one by one. keep: called with each tensor that is made, and its number; what
    an error leaves out is not made."""
    env = dict(zip(places, inputs, strict=True))
    last = {index: at for at, (_, operands) in enumerate(steps(rules, wires)) for index in operands}
    first = 0
    for at, (rule, operands, made) in enumerate(numbering(rules, wires, places)):
        def number_of(number: Number, first: int = first) -> Any:
            return number.kind(numbers[first + number.number])

        def tensor_of(number: int, operands: list[int] = operands) -> torch.Tensor:
            return env[operands[number]]

        def put(number: int, tensor: torch.Tensor, made: list[int] = made) -> None:
            env[made[number]] = tensor
            keep(made[number], tensor)

        args = insert(rule.args, tensor_of, number_of)
        kwargs = {name: insert(arg, tensor_of, number_of) for name, arg in rule.kwargs.items()}
        take(rule.func(*args, **kwargs), rule.result, put)
        first += rule.numbers
        for index in {*operands, *made}:
            if last.get(index, at) <= at:
                env.pop(index, None)
