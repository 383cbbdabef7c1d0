"""Texts with symbolic numbers in them: `f"{n} rows"` where n is no constant of the trace.

A `SymbolicText` is made of texts and numbers; it may be joined to others, returned, printed and
put in containers, and the new bytecode makes it of the numbers of each call. Whatever else looks at
it reads `value`, which fixes the numbers. An `UnreadText` has the value of a tensor in it: most are
messages of errors that do not happen, and only one that is looked at breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import SymbolicNumber, is_symbolic

Piece = str | tuple[SymbolicNumber, str]  # a text; a number, and how it is formatted
LONGEST = 40  # pieces


class SymbolicText(ConstVar):
    """A str whose numbers are not fixed yet."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__("")
        self.pieces = pieces

    @property
    def value(self) -> str:
        return "".join(
            piece if isinstance(piece, str) else format(piece[0].value, piece[1])
            for piece in self.pieces)

    def children(self) -> Iterable[Var]:
        return [piece[0] for piece in self.pieces if not isinstance(piece, str)]

    def describe(self) -> str:
        return repr("".join(
            piece if isinstance(piece, str) else f"{{{piece[0].describe()}}}"
            for piece in self.pieces))

    def python_type(self) -> type:
        return str

    def truth(self, tx: Frame) -> bool:
        return True  # no number has an empty text, except by a format that is not taken here

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.value)

    def maker(self) -> Callable[..., str]:
        """A function of the numbers (see `children`) that makes the text."""
        formats = [piece if isinstance(piece, str) else piece[1] for piece in self.pieces]
        texts = [isinstance(piece, str) for piece in self.pieces]

        def make(*numbers: Any) -> str:
            rest = iter(numbers)
            return "".join(
                spec if is_text else format(next(rest), spec)
                for spec, is_text in zip(formats, texts, strict=True))

        return make


class UnreadText(SymbolicText):
    """A str with the text of a tensor in it. made_at: the step that formats the tensor, where the
    graph breaks if the text is looked at, or leaves the trace; tensor: it, in words."""

    def __init__(self, made_at: int, tensor: str) -> None:
        super().__init__(())
        self.made_at, self.tensor = made_at, tensor

    @property
    def value(self) -> str:
        raise RestartTrace(self.made_at, Break("text_of_tensor", self.tensor))

    def describe(self) -> str:
        return f"the text of {self.tensor}"


def is_symbolic_text(var: Var) -> bool:
    """True for a text with a number that is open still."""
    return isinstance(var, SymbolicText) and any(map(is_symbolic, var.children()))


def of_number(number: Var, spec: str = "") -> SymbolicText | None:
    """`format(number, spec)`; None where the number is fixed."""
    if not isinstance(number, SymbolicNumber) or not number.is_symbolic:
        return None
    format(number.hint, spec)  # a wrong format raises here
    return SymbolicText(((number, spec),))


def joined(parts: Iterable[Var]) -> Var | None:
    """The texts one after the other; None where one is no text, or none is open."""
    pieces: list[Piece] = []
    any_symbolic = False
    unread: UnreadText | None = None
    for part in parts:
        if isinstance(part, UnreadText):
            unread = unread or part
        elif isinstance(part, SymbolicText):
            pieces += part.pieces
            any_symbolic = any_symbolic or is_symbolic_text(part)
        elif type(part) is ConstVar and part.python_type() is str:
            pieces.append(part.as_constant())
        else:
            return None
    if unread is not None:
        return UnreadText(unread.made_at, unread.tensor)
    return SymbolicText(tuple(pieces)) if any_symbolic and len(pieces) <= LONGEST else None
