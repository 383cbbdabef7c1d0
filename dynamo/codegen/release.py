"""Empties locals of the new code that nothing reads any more.

A frame that an exception's traceback holds keeps its locals: where one of them holds the exception,
both, and all else that the frame holds, stay until the garbage collector runs. So they are emptied
before code of the program runs: not earlier, since what dies may run code of the program, too, and
that must find all effects made.

In: the instructions of the new code, and where code of the program runs or goes on. Out: the same
list with instructions that empty locals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dynamo.bytecode.raw import Raw, RawCode

ENDS = frozenset(("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD"))


def release(raw: RawCode, held_names: Collection[str], leaves: Collection[Raw]) -> None:
    """Adds the instructions.

    held_names: locals that stay as they are; leaves: the calls of continuations, and the
    instructions of the program that run in the frame.
    """
    bits = {name: 1 << place for place, name in enumerate(raw.varnames)}
    live, bound = _live_after(raw, bits), _bound_before(raw, bits)
    stays = _as_bits(bits, held_names)
    for position in range(len(raw.instructions) - 1, -1, -1):
        item = raw.instructions[position]
        if item not in leaves:
            continue
        calls = position and raw.instructions[position - 1].name == "PRECALL"
        empty = raw.const(None)
        dead = bound[position] & ~(live[position] | stays | _as_bits(bits, item.slots))
        raw.instructions[position - calls : position - calls] = [
            made for name in raw.varnames if dead & bits[name] for made in (
                Raw("LOAD_CONST", empty, (), None, item.position),
                Raw("STORE_FAST", 0, (name,), None, item.position),
            )
        ]


def _as_bits(bits: Mapping[str, int], names: Iterable[str]) -> int:
    """A set of locals; cells and the like have no bit."""
    found = 0
    for name in names:
        found |= bits.get(name, 0)
    return found


def _next(raw: RawCode) -> list[list[int]]:
    """For each instruction, the positions of those that may run after it."""
    places = {item: position for position, item in enumerate(raw.instructions)}
    found: list[list[int]] = []
    for position, item in enumerate(raw.instructions):
        after = [places[item.target]] if item.target is not None else []
        if item.name not in ENDS:
            after.append(position + 1)
        found.append(after)
    for region in raw.protected:
        for position in range(places[region.first], places[region.last] + 1):
            found[position].append(places[region.handler])
    return found


def _live_after(raw: RawCode, bits: Mapping[str, int]) -> list[int]:
    """The locals that may be read behind each instruction; all jumps go forward."""
    before = [0] * (len(raw.instructions) + 1)
    after = [0] * len(raw.instructions)
    following = _next(raw)
    for position in range(len(raw.instructions) - 1, -1, -1):
        item = raw.instructions[position]
        for place in following[position]:
            after[position] |= before[place]
        named = _as_bits(bits, item.slots)
        if item.name == "STORE_FAST":
            before[position] = after[position] & ~named
        else:
            before[position] = after[position] | named
    return after


def _bound_before(raw: RawCode, bits: Mapping[str, int]) -> list[int]:
    """The locals that may hold a value before each instruction."""
    bound = [0] * (len(raw.instructions) + 1)
    bound[0] = _as_bits(bits, raw.varnames[: raw.parameters])
    following = _next(raw)
    for position, item in enumerate(raw.instructions):
        here = bound[position]
        if item.name == "STORE_FAST":
            here |= _as_bits(bits, item.slots)
        elif item.name == "DELETE_FAST":
            here &= ~_as_bits(bits, item.slots)
        for place in following[position]:
            bound[place] |= here
    return bound
