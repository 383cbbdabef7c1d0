"""`Emitter`: appends new instructions to a `RawCode`; version knowledge stays in here."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

from dynamo.bytecode.raw import NOWHERE, Position, Protected, Raw, RawCode
from dynamo.bytecode.versions import VERSION


class Emitter:
    """Appends instructions. Jumps take a `Raw` as their label, placed later by `place`."""

    def __init__(self, raw: RawCode, position: Position = NOWHERE) -> None:
        self.raw = raw
        self.position = position
        self._known_slots = set(raw.varnames)
        self._temps = 0

    def emit(self, name: str, arg: int = 0, slot: str = "", target: Raw | None = None) -> Raw:
        item = Raw(name, arg, (slot,) if slot else (), target, self.position)
        self.raw.instructions.append(item)
        return item

    def append(self, item: Raw) -> None:
        self.raw.instructions.append(item)

    # -- values -----------------------------------------------------------------------------

    def load_const(self, value: Any) -> None:
        self.emit("LOAD_CONST", self.raw.const(value))

    def load_fast(self, name: str) -> None:
        self.emit("LOAD_FAST", slot=name)

    def store_fast(self, name: str) -> None:
        if name not in self._known_slots:
            self._known_slots.add(name)
            self.raw.varnames.append(name)
        self.emit("STORE_FAST", slot=name)

    def delete_fast(self, name: str) -> None:
        self.emit("DELETE_FAST", slot=name)

    def fresh(self, hint: str = "value") -> str:
        """A new name for a local."""
        self._temps += 1
        return f"__{hint}_{self._temps}"

    def store_fresh(self, hint: str = "value") -> str:
        """Pops the top of the stack into a new local."""
        name = self.fresh(hint)
        self.store_fast(name)
        return name

    def load_closure(self, name: str) -> None:
        op = "LOAD_CLOSURE" if VERSION.opmap.get("LOAD_CLOSURE", 256) < 256 else "LOAD_FAST"
        self.emit(op, slot=name)

    def load_global(self, name: str) -> None:
        self.emit("LOAD_GLOBAL", self.raw.use_name(name) << 1)

    def load_attr(self, name: str) -> None:
        index = self.raw.use_name(name)
        self.emit("LOAD_ATTR", index << 1 if VERSION.attr_flag else index)

    def store_attr(self, name: str) -> None:
        self.emit("STORE_ATTR", self.raw.use_name(name))

    def delete_attr(self, name: str) -> None:
        self.emit("DELETE_ATTR", self.raw.use_name(name))

    # -- calls ------------------------------------------------------------------------------

    def start_call(self, load: Callable[[], None]) -> None:
        """Pushes the callable as CALL and CALL_FUNCTION_EX want it."""
        if VERSION.null_first:
            self.emit("PUSH_NULL")
        load()
        if not VERSION.null_first:
            self.emit("PUSH_NULL")

    def start_call_const(self, function: Any) -> None:
        self.start_call(lambda: self.load_const(function))

    def call(self, count: int) -> Raw:
        """Calls with `count` positional arguments."""
        if VERSION.precall:
            self.emit("PRECALL", count)
        return self.emit("CALL", count)

    def call_spread(self, keywords: bool) -> Raw:
        """Calls with a tuple, and a dict where there are keywords."""
        if VERSION.call_ex_null:
            if not keywords:
                self.emit("PUSH_NULL")
            return self.emit("CALL_FUNCTION_EX")
        return self.emit("CALL_FUNCTION_EX", int(keywords))

    def subscript(self) -> None:
        if VERSION.subscript is None:
            self.emit("BINARY_SUBSCR")
        else:
            self.emit("BINARY_OP", VERSION.subscript)

    # -- jumps ------------------------------------------------------------------------------

    def label(self) -> Raw:
        """A jump target that `place` puts at a position."""
        return Raw("NOP", position=self.position)

    def place(self, label: Raw) -> None:
        self.raw.instructions.append(label)

    def jump(self, target: Raw, backward: bool = False) -> None:
        self.emit("JUMP_BACKWARD" if backward else "JUMP_FORWARD", target=target)

    def jump_if(self, op: str, target: Raw) -> None:
        """A conditional forward jump on the top of the stack."""
        if VERSION.needs_bool and op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
            self.emit("TO_BOOL")
        self.emit(VERSION.jump_if[op][0], target=target)

    def protect(self, first: Raw, last: Raw, handler: Raw, depth: int) -> None:
        """An exception between the two instructions goes to the handler."""
        self.raw.protected.append(Protected(first, last, handler, depth, False))

    # -- size -------------------------------------------------------------------------------

    def stack_bound(self) -> int:
        """An upper bound of the stack's depth, for code in which each path only grows less."""
        depth = most = 0
        for item in self.raw.instructions:
            depth = max(0, depth + stack_effect(item, jump=False))
            most = max(most, depth)
        return most + 8


def stack_effect(item: Raw, jump: bool | None = None) -> int:
    """Change of the stack's depth by an instruction; jump: see `dis.stack_effect`."""
    number = VERSION.opmap[item.name]
    arg = item.arg if number >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(number, arg, jump=jump)
