"""A random tensor program: inputs of many layouts, and statements over them that eager can run.

A program is data, so that it shrinks by leaving statements out, and has a source text. Sizes of inputs
are letters, so that one program runs with several sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

NAME = re.compile(r"\bv\d+\b")
PLAIN = "contextlib.nullcontext()"


@dataclass(frozen=True)
class Input:
    """shape: letters a, b, c or ints. grad: "", "leaf" or "computed". of: the input that it is a view of."""

    name: str
    shape: tuple[Any, ...]
    dtype: str
    layout: str
    values: str
    grad: str
    of: str = ""

    def __str__(self) -> str:
        parts = (self.dtype, self.layout, self.values, self.grad, self.of and f"of {self.of}")
        return f"{self.name}: {list(self.shape)} " + " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Statement:
    targets: tuple[str, ...]
    text: str

    @property
    def uses(self) -> frozenset[str]:
        return frozenset(NAME.findall(self.text))

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} = {self.text}"


@dataclass(frozen=True)
class Program:
    """around: the context in which f is called; within: (first, end, context) of a block inside.

    sizes: what the letters a, b, c are, one after the other; f is called twice with each.
    """

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    around: str
    within: tuple[int, int, str]
    dynamic: bool | None
    sizes: tuple[tuple[int, int, int], ...]

    def source(self, after: str = "") -> str:
        """The text of `f`. after: a function that is called with what each statement gives."""
        lines = [f"def f({', '.join(i.name for i in self.inputs)}):"]
        first, end, context = self.within
        for at, statement in enumerate(self.statements):
            inside = context and first <= at < end
            if inside and at == first:
                lines.append(f"    with {context}:")
            lines.append(f"    {'    ' if inside else ''}{statement}")
            if after:
                lines[-1] += f"; {after}({', '.join(statement.targets)})"
        outs = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([*lines, f"    return ({outs})"])

    def __str__(self) -> str:
        notes = [f"# {i}" for i in self.inputs]
        notes.append(f"# around: {self.around}, dynamic={self.dynamic}, sizes: {self.sizes}")
        return "\n".join([*notes, self.source()])


def smaller(program: Program) -> list[Program]:
    """The programs with one thing less."""
    found = []
    for at in range(len(program.statements)):
        lost = set(program.statements[at].targets)
        keep = []
        for statement in program.statements[:at] + program.statements[at + 1 :]:
            if statement.uses & lost:
                lost |= set(statement.targets)
            else:
                keep.append(statement)
        outputs = tuple(name for name in program.outputs if name not in lost)
        found.append(replace(program, statements=tuple(keep), outputs=outputs))
    for at in range(len(program.outputs)):
        found.append(replace(program, outputs=program.outputs[:at] + program.outputs[at + 1 :]))
    used = {name for s in program.statements for name in s.uses} | set(program.outputs)
    used |= {i.of for i in program.inputs}
    if any(i.name not in used for i in program.inputs):
        found.append(replace(program, inputs=tuple(i for i in program.inputs if i.name in used)))
    for n, i in enumerate(program.inputs):
        for field, plain in (("grad", ""), ("layout", "plain"), ("values", "normal"), ("of", "")):
            if getattr(i, field) != plain and not (field == "layout" and i.of):
                changed = replace(i, **{field: plain})
                found.append(replace(program, inputs=(*program.inputs[:n], changed, *program.inputs[n + 1 :])))
    if program.within[2]:
        found.append(replace(program, within=(0, 0, "")))
    if program.around != PLAIN:
        found.append(replace(program, around=PLAIN))
    if len(program.sizes) > 1:
        found += [replace(program, sizes=program.sizes[:1]), replace(program, sizes=program.sizes[1:])]
    return found
