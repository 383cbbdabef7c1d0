"""What the parts of a function's printer share: its lines, and how rows and columns are spelled.

In: a `Launch`. Out: lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from inductor.codegen.triton.aligned import Unaligned
from inductor.codegen.triton.launch import Launch
from inductor.codegen.triton.numbers import Numbers
from inductor.codegen.triton.spelling import print_index

Axes = frozenset[str]
NO_AXES: Axes = frozenset()
ROWS: Axes = frozenset("x")


@dataclass(frozen=True, slots=True)
class Text:
    """A value: the name of a variable, and its axes."""

    name: str
    axes: Axes


class Writer:
    """Lines of a function, names of variables, and what has been computed already."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.scopes: list[dict[str, str]] = [{}]
        self.bases: dict[str, str] = {}  # where the current tile of columns begins

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count - 1}"

    def define(self, expression: str, reuse: bool = True) -> str:
        """A variable with the value of the expression; an old one if `reuse` allows it."""
        if reuse:
            for scope in self.scopes:
                if expression in scope:
                    return scope[expression]
        name = self.fresh()
        self.line(f"{name} = {expression}")
        if reuse:
            self.scopes[-1][expression] = name
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines inside of a loop; what they compute is not known outside."""
        self.line(head)
        self.depth += 1
        self.scopes.append({})
        yield
        self.scopes.pop()
        self.depth -= 1


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of a stage are spelled: variable, mask (or ""), block constant."""

    name: str
    mask: str
    block: str
    extent: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What all stages of a function share."""

    launch: Launch
    wide: bool  # indices are int64
    flat: bool  # tiles have one axis, the rows
    row_mask: str
    written: Axes  # buffers that the launch writes
    parameters: dict[str, str]  # the parameter for each buffer
    numbers: Numbers
    most_rows: int = 0  # of a tile of rows and columns, a power of two; 0: loads are for each row
    elements: Mapping[str, int] = field(default_factory=dict)  # of buffers; without, see `pairs`


def program(frame: Frame) -> str:
    """The number of the program among those of the rows."""
    return "tl.program_id(0).to(tl.int64)" if frame.wide else "tl.program_id(0)"


def print_columns(writer: Writer, columns: Columns, base: str, frame: Frame) -> None:
    """The variable and the mask of a tile of columns that begins at `base`."""
    writer.bases[columns.name] = base
    writer.line(f"{columns.name} = {_counted(columns, base, frame)}")
    if columns.mask:
        writer.line(f"{columns.mask} = {columns.name} < {frame.numbers.spell(columns.extent)}")


def _counted(columns: Columns, base: str, frame: Frame) -> str:
    text = f"tl.arange(0, {columns.block})[None, :]"
    text = f"{base} + {text}" if base else text
    return f"({text}).to(tl.int64)" if frame.wide else text


# Rows in parts (see `aligned`). Places (at_) are counted from the stretch in which the row begins,
# which is skew_ elements before its first column; whole stretches go from begin_ to end_.


def print_stretches(writer: Writer, columns: Columns, frame: Frame, rows: Unaligned) -> str:
    """Where the row of a program and its whole stretches lie; the bounds of a loop over those."""
    name, step = columns.name, rows.step
    writer.line('tl.static_assert(XBLOCK == 1, "rows that begin anywhere go one by one")')
    start = print_index(rows.start, {"x": program(frame)}, frame.numbers)
    extent = frame.numbers.spell(columns.extent)
    writer.line(f"whole_{name} = ({start}) // {step} * {step}")
    writer.line(f"skew_{name} = ({start}) - whole_{name}")
    writer.line(f"begin_{name} = (skew_{name} + {step - 1}) // {step} * {step}")
    writer.line(f"end_{name} = (skew_{name} + {extent}) // {step} * {step}")
    return f"begin_{name}, end_{name}"


def print_ends(writer: Writer, columns: Columns, frame: Frame, rows: Unaligned) -> None:
    """A tile whose first elements are those before and behind the whole stretches of a row."""
    name, step = columns.name, rows.step
    total = f"skew_{name} + {frame.numbers.spell(columns.extent)}"
    writer.line(f"at_{name} = {_counted(columns, '', frame)}")
    behind = f"(end_{name} - {step} + at_{name})"
    head = f"(at_{name} >= skew_{name}) & (at_{name} < begin_{name})"
    tail = f"(at_{name} >= {step}) & ({behind} < {total})"
    writer.line(f"{columns.mask} = ({head}) | ({tail})")
    writer.line(f"at_{name} = tl.where(at_{name} < {step}, at_{name}, {behind})")
    writer.line(f"{name} = at_{name} - skew_{name}")


def print_whole_stretches(writer: Writer, columns: Columns, base: str, frame: Frame) -> None:
    """A tile of whole stretches, whose first place is `base`."""
    name = columns.name
    writer.line(f"at_{name} = {_counted(columns, base, frame)}")
    writer.line(f"{name} = at_{name} - skew_{name}")
    writer.line(f"{columns.mask} = at_{name} < end_{name}")
