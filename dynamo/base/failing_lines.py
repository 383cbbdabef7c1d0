"""The user's lines of the operation that fails inside of a compiled graph, in the traceback.

In: an error on its way out of a graph. Where the operation is known (what ran it has noted its
stack, or a graph module's own code is in the traceback), the traceback gets an entry for each line
of that stack, outermost first, as if Python had run them. Nothing is done where nothing fails.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from traceback import walk_tb
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from torch import fx

from dynamo.base.user_lines import frames_of, user_place

STACK = "dynamo_stack"  # of an error: the stack of the operation, as a node keeps it
LINES = "dynamo_lines"  # of an error: the lines of the operations of the step that has failed
SHOWN = "dynamo_shown"
BY_DATA = ("index", "getitem", "gather", "embedding", "scatter", "take", "put", "nll", "one_hot",
           "cross_entropy", "bincount", "select")  # in names of operators that check indices
Nodes = Callable[[], Iterable[fx.Node]]
OF_GRAPHS = "<eval_with_key>"
_ASSIGNED = re.compile(r"\s*(\w+)\b[^=]*=")
_GLOBALS: dict[str, Any] = {"__name__": "compiled", "sys": sys}
_NO_COLUMNS = 0x80 | 13 << 3  # an entry of a line table that tells no columns; its low bits: length


def note_stack(error: BaseException, stack: str | None) -> None:
    """The error is about the operation with this stack, unless one is noted already."""
    if stack:
        error.__dict__.setdefault(STACK, stack)


def stack_of(error: BaseException, nodes: Nodes = tuple) -> str:
    """The stack of the operation that has failed; "" where that is not known.

    nodes: gives those of the graph, of which a failing step of its code knows the lines only.
    """
    noted = error.__dict__.get(STACK)
    if noted:
        return str(noted)
    if LINES in error.__dict__:
        return _stack_of_lines(error.__dict__[LINES], nodes())
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if frame.f_code.co_filename.startswith(OF_GRAPHS):
            node = _node_at(frame, line)
            if node is not None and node.meta.get("stack_trace"):
                return str(node.meta["stack_trace"])
    return ""


def show_line(error: BaseException, nodes: Nodes = tuple) -> None:
    """Puts the lines of the operation that has failed into the traceback of its error, once."""
    if SHOWN in error.__dict__:
        return
    stack = stack_of(error, nodes)
    error.__dict__.pop(LINES, None)
    if not stack:
        return
    error.__dict__[SHOWN] = True
    entry = error.__traceback__
    for file, line, function, _ in reversed(frames_of(stack)):
        frame = FunctionType(_code(file, int(line), function), _GLOBALS)()
        entry = TracebackType(entry, frame, frame.f_lasti, int(line))
    error.__traceback__ = entry


def _stack_of_lines(lines: Sequence[str], nodes: Iterable[fx.Node]) -> str:
    """The stack of one of the operations of a step. lines: `file:line` of each, or its stack. Of
    several the one that can fail by its data."""
    found: dict[str, str] = {}
    for node in nodes:
        stack = node.meta.get("stack_trace")
        place = user_place(stack)
        text = f"{place[0]}:{place[1]}" if place else ""
        if text in lines or stack in lines:
            word = str(getattr(node.target, "__name__", node.target)).rpartition(".default")[0]
            fails = any(part in (word or str(node.target)) for part in BY_DATA)
            found[str(stack)] = "by data" if fails else found.get(str(stack), "")
    for stack in sorted(found, key=lambda one: not found[one]):
        return stack
    for line in lines:
        file, _, number = line.rpartition(":")
        if "\n" in line:
            return line
        if number.isdigit():
            return f'  File "{file}", line {number}, in compiled'
    return ""


def _node_at(frame: FrameType, line: int) -> fx.Node | None:
    """The node that a line of a graph module's code computes: it is assigned to the node's name."""
    module = frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return None
    found = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, line))
    name = found[1] if found else ""
    return next((node for node in module.graph.nodes if node.name == name), None)


def _frame() -> FrameType:
    return sys._getframe()


def _code(file: str, line: int, function: str) -> CodeType:
    """Code of that name, all of which stands at that line; it gives its frame."""
    code, table = _frame.__code__, bytearray()
    left = len(code.co_code) // 2
    while left:
        part = min(left, 8)
        table += bytes((_NO_COLUMNS | part - 1, 0))
        left -= part
    return code.replace(
        co_filename=file, co_name=function, co_qualname=function, co_firstlineno=line,
        co_linetable=bytes(table))
