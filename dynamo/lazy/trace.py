"""A trace: the operations that were recorded since the last cut, and what they read.

All tensors of a trace are numbered in the order in which they are first met; `wires` has the
numbers of the operands of all operations in a row. So (rules, wires) says everything about the
trace but which of its tensors are wanted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from dynamo.lazy.rules import Rule
from dynamo.lazy.values import BASE, Value
from dynamo.shapes.facts import Facts


class Trace:
    """slots: for each tensor of the trace, a weak reference to the value that it makes; None for an
    input. roots: the input whose memory a tensor has, or -1. writes: it writes into inputs.
    adopted: ordinary tensors that are inputs, by id, with the address that they had. addresses:
    the same by address. storages: memory that it reads and that an ordinary tensor has, too.
    dtype: the default one, which all of its operations were recorded with.
    """

    __slots__ = ("addresses", "adopted", "dtype", "inputs", "numbers", "places", "roots", "rules",
                 "slots", "storages", "wires", "writes", "writes_ordinary")  # fmt: skip

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.wires: list[int] = []
        self.numbers: list[float] = []
        self.slots: list[weakref.ref[Value] | None] = []
        self.roots: list[int] = []
        self.inputs: list[Value] = []
        self.places: list[int] = []
        self.adopted: dict[int, tuple[torch.Tensor, Value, int]] = {}
        self.addresses: dict[tuple[int, Facts], Value] = {}
        self.storages: set[int] = set()
        self.writes = self.writes_ordinary = False
        self.dtype = torch.get_default_dtype()

    def add_input(self, value: Value) -> int:
        """The number of a value that is known already."""
        index = value.index = len(self.slots)
        value.trace = self
        self.slots.append(None)
        self.roots.append(index)
        self.inputs.append(value)
        self.places.append(index)
        return index

    def add(self, rule: Rule, operands: list[int]) -> list[Value]:
        """Records an operation; its new values."""
        self.rules.append(rule)
        self.wires += operands
        if rule.single and not rule.writes:  # most are like this
            value = Value(rule.made[0])
            value.trace, value.index = self, len(self.slots)
            self.slots.append(weakref.ref(value))
            shares = rule.shares[0]
            self.roots.append(-1 if shares < 0 else self.roots[operands[shares]])
            return [value]
        values = []
        for facts, shares in zip(rule.made, rule.shares, strict=True):
            value = Value(facts)
            value.trace, value.index = self, len(self.slots)
            self.slots.append(weakref.ref(value))
            self.roots.append(-1 if shares < 0 else self.roots[operands[shares]])
            values.append(value)
        for number in rule.writes:
            if self.roots[operands[number]] >= 0:
                self.writes = True
        return values

    def live(self) -> dict[int, Value]:
        """The values that somebody still holds, by number."""
        alive: dict[int, Value] = {}
        for index, reference in enumerate(self.slots):
            value = None if reference is None else reference()
            if value is not None:
                alive[index] = value
        return alive

    def key(self) -> tuple[Any, ...]:
        """Equal for traces of the same operations on the same metadata."""
        return (tuple(self.rules), tuple(self.wires), tuple(self.places), self.shared())

    def shared(self) -> tuple[tuple[int, int], ...]:
        """Which inputs share memory."""
        first: dict[int, int] = {}
        pairs = []
        for index, value in zip(self.places, self.inputs, strict=True):
            assert value.real is not None
            other = first.setdefault(BASE.untyped_storage(value.real)._cdata, index)
            if other != index:
                pairs.append((other, index))
        return tuple(pairs)
