"""Texts of symbolic numbers: `str`, `repr`, `format`, `+`, `str.join` and f-strings.

In: the calls of functions that make or join texts. Out: a `SymbolicText`; None where no number in
it is symbolic, so that the rules for constants go on.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.shapes.numbers import SymbolicNumber, is_symbolic
from dynamo.symbolic.shapes.symbolic_text import SymbolicText, joined, of_number


@first_rule([str, repr], SymbolicNumber)
def text_of_number(tx: Frame, /, number: Var, *rest: Var, **names: Var) -> Var | None:
    return None if rest or names else of_number(number)


@first_rule([format], SymbolicNumber)
def format_number(tx: Frame, number: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    if type(spec) is not ConstVar or spec.python_type() is not str:
        return None
    if spec.as_constant().endswith("c"):  # a character, which not every number is
        return None
    try:
        return of_number(number, spec.as_constant())
    except (ValueError, TypeError, OverflowError):  # raised again by the rules for constants
        return None


AROUND: dict[Any, tuple[str, str]] = {
    list: ("[", "]"), tuple: ("(", ")"), torch.Size: ("torch.Size([", "])"),
}  # fmt: skip


@first_rule([str, repr], (ListVar, TupleVar))
def text_of_items(tx: Frame, /, items: Var, *rest: Var, **names: Var) -> Var | None:
    """Of a list or tuple with symbolic numbers, of nothing but constants."""
    around = AROUND.get(items.python_type())
    if rest or names or around is None:
        return None
    found = items.unpack(tx)
    if not any(map(is_symbolic, found)) or not all(item.is_constant() for item in found):
        return None
    parts: list[Var] = []
    for item in found:
        text = tx.trace.call(tx, repr, item)
        parts += [ConstVar(", "), text] if parts else [text]
    comma = "," if len(found) == 1 and around[0] == "(" else ""
    return joined([ConstVar(around[0]), *parts, ConstVar(comma + around[1])])


@first_rule([format], (ListVar, TupleVar))
def format_items(tx: Frame, items: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    plain = type(spec) is ConstVar and spec.as_constant() == ""
    return text_of_items(tx, items) if plain else None


@first_rule([str], SymbolicText)
def text_of_text(tx: Frame, /, text: Var, *rest: Var, **names: Var) -> Var | None:
    return None if rest or names else text


@first_rule([format], SymbolicText)
def format_text(tx: Frame, text: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    return text if spec.is_constant() and spec.as_constant() == "" else None


@first_rule([operator.add, operator.iadd, str.__add__], SymbolicText)
def add_right(tx: Frame, text: Var, other: Var) -> Var | None:
    return joined((text, other))


@first_rule([operator.add, operator.iadd, str.__add__], ConstVar, SymbolicText)
def add_left(tx: Frame, text: Var, other: Var) -> Var | None:
    return joined((text, other))


@first_rule([str.join], ConstVar, (ListVar, TupleVar))
def join_texts(tx: Frame, separator: Var, items: Var) -> Var | None:
    parts: list[Var] = []
    for item in items.unpack(tx):
        parts += [separator, item] if parts else [item]
    return joined(parts)


@first_rule([operator.mod, str.__mod__], ConstVar)
def fill_percents(tx: Frame, text: Var, given: Var) -> Var | None:
    """`"%d of %s" % (n, m)`, of nothing but these two marks."""
    values = given.unpack(tx) if type(given) is TupleVar else [given]
    if not is_text(text) or not any(map(is_symbolic, values)):
        return None
    parts = re.split("%[ds]", text.as_constant())
    whole = all(value.python_type() is int for value in values)
    return filled(tx, parts, values) if whole and "%" not in "".join(parts) else None


@first_rule([str.format], ConstVar)
def fill_braces(tx: Frame, text: Var, /, *values: Var, **names: Var) -> Var | None:
    """`"{} of {}".format(n, m)`, of nothing but this mark."""
    if names or not is_text(text) or not any(map(is_symbolic, values)):
        return None
    parts = text.as_constant().split("{}")
    return None if set("{}") & set("".join(parts)) else filled(tx, parts, values)


def is_text(var: Var) -> bool:
    return type(var) is ConstVar and var.python_type() is str


def filled(tx: Frame, parts: list[str], values: Sequence[Var]) -> Var | None:
    """The parts with the values' texts between them; None where there are more or fewer."""
    if len(parts) != len(values) + 1 or not all(value.is_constant() for value in values):
        return None
    pieces: list[Var] = [ConstVar(parts[0])]
    for value, part in zip(values, parts[1:], strict=True):
        pieces += [tx.trace.call(tx, str, value), ConstVar(part)]
    return joined(pieces)
