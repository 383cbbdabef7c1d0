"""Bytecode without torch: lossless editing, one instruction set, liveness, no gap in the opcodes."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import types
from collections.abc import Iterator

import pytest

from dynamo.bytecode.decode import decode
from dynamo.bytecode.liveness import Liveness
from dynamo.bytecode.raw import assemble, disassemble, read_exception_table
from dynamo.bytecode.versions import KNOWN, VERSION, choose

MODULES = (ast, collections, contextlib, dataclasses)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def all_codes() -> list[types.CodeType]:
    found = []
    for module in MODULES:
        with open(module.__file__) as source:  # type: ignore[arg-type]
            found += list(codes(compile(source.read(), module.__name__, "exec")))
    return found


def test_round_trip_loses_nothing() -> None:
    for code in all_codes():
        again = assemble(disassemble(code))
        if VERSION.slot_pair_ops:  # the first reading makes two opcodes of each of these
            code, again = again, assemble(disassemble(again))
        assert again.co_code == code.co_code
        assert again.co_exceptiontable == code.co_exceptiontable
        assert list(again.co_positions()) == list(code.co_positions())
        assert again.co_consts == code.co_consts


def test_each_opcode_has_a_row() -> None:
    real = {name for name, number in VERSION.opmap.items() if number < 256}
    assert real == set(VERSION.rows) | VERSION.slot_pair_ops | set(VERSION.read_as)


@pytest.mark.parametrize(("version", "free", "text"), [
    ((3, 10), False, "3.11 to 3.14, not on 3.10"), ((3, 15), False, "not on 3.15"),
    ((3, 14), True, "free-threaded")])
def test_other_pythons_are_refused(version: tuple[int, int], free: bool, text: str) -> None:
    with pytest.raises(ImportError, match=text):
        choose(version, free)
    assert choose((3, 14), False) is KNOWN[3, 14]


@pytest.mark.parametrize("version", KNOWN, ids=lambda version: f"{version[0]}.{version[1]}")
def test_each_normalised_opcode_has_a_handler(version: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    facts = KNOWN[version]
    from dynamo.bytecode import decode as module
    from dynamo.symbolic.machine.opcodes import HANDLERS

    normalised = {op for op, kind in facts.rows.values() if not kind.startswith("intrinsic")}
    normalised |= {*module.INTRINSICS_1.values(), *module.INTRINSICS_2.values()}
    normalised |= {"LOAD_CLOSURE", "STORE_CLOSURE", "LOAD_METHOD"}
    assert normalised <= set(HANDLERS), normalised - set(HANDLERS)


def test_decode_calls_with_keywords() -> None:
    def f(g, x):  # type: ignore[no-untyped-def]
        return g(x, k=1)

    ops = [item.op for item in decode(f.__code__).instructions if item.op != "NOP"]
    assert ops[-2:] == (["CALL", "RETURN_VALUE"] if not VERSION.call_kw else ["CALL_KW", "RETURN_VALUE"])


def test_decode_jump_targets_and_handlers() -> None:
    def f(xs):  # type: ignore[no-untyped-def]
        for x in xs:
            try:
                x()
            except ValueError:
                pass

    decoded = decode(f.__code__)
    loop = next(item for item in decoded.instructions if item.op == "FOR_ITER")
    assert decoded.instructions[loop.target].op in ("LOAD_CONST", "NOP")
    call = next(item for item in decoded.instructions if item.op == "CALL")
    handler = decoded.handlers[call.index]
    assert handler is not None
    assert decoded.instructions[handler.target].op == "PUSH_EXC_INFO"
    assert handler.depth == 1


def test_decode_is_fully_known() -> None:
    for code in all_codes():
        decoded = decode(code)
        assert all(item.op != "INSTRUMENTED" for item in decoded.instructions)


def test_liveness_drops_what_nobody_reads() -> None:
    def f(a, b, c):  # type: ignore[no-untyped-def]
        b = a + b
        a = c
        return a

    decoded = decode(f.__code__)
    stores = [item for item in decoded.instructions if item.op == "STORE_FAST"]
    live = Liveness(decoded)
    assert live.at(0) == {"a", "b", "c"}
    assert live.at(stores[0].index + 1) == {"c"}
    assert live.at(stores[1].index + 1) == {"a"}


def test_liveness_sees_handlers() -> None:
    def f(a, g):  # type: ignore[no-untyped-def]
        try:
            g()
        except ValueError:
            return a

    decoded = decode(f.__code__)
    call = next(item for item in decoded.instructions if item.op == "CALL")
    assert "a" in Liveness(decoded).at(call.index)


def test_innermost_of_nested_regions_wins() -> None:
    def f(g):  # type: ignore[no-untyped-def]
        try:
            return g()
        except ValueError:
            return "inner"

    raw = disassemble(f.__code__)
    inner = raw.protected[0]
    outer = dataclasses.replace(inner, first=raw.instructions[0], last=raw.instructions[-1])
    raw.protected.insert(0, outer)
    starts = [start for start, *_ in read_exception_table(assemble(raw).co_exceptiontable)]
    assert starts == sorted(set(starts)) and len(starts) > len(disassemble(f.__code__).protected)


def test_jump_over_much_code_gets_longer() -> None:
    text = "def f(x):\n    if x:\n" + "        x = x + 1\n" * 500 + "    return x"
    scope: dict[str, types.FunctionType] = {}
    exec(text, scope)
    code = scope["f"].__code__
    raw = disassemble(code)
    raw.instructions[2:2] = []
    assert types.FunctionType(assemble(raw), {})(1) == 501


def test_any_order_of_many_locals() -> None:
    """3.13 has opcodes for two locals, whose second one must be among the first sixteen."""
    names = [f"v{n}" for n in range(40)]
    lines = [f"{name} = {n}" for n, name in enumerate(names)]
    lines += [f"{a}, {b} = {b}, {a}" for a, b in zip(names, names[1:], strict=False)]
    lines.append(f"return [{', '.join(f'{a} - {b}' for a, b in zip(names, names[1:], strict=False))}]")
    scope: dict[str, types.FunctionType] = {}
    exec("def f():\n    " + "\n    ".join(lines), scope)
    function = scope["f"]
    raw = disassemble(function.__code__)
    raw.varnames.reverse()
    moved = assemble(raw)
    assert moved.co_varnames == tuple(reversed(names))
    assert types.FunctionType(moved, {})() == function()
