"""Nouns and numbers in the messages for users."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def noun(name: str) -> str:
    """The name of a class as a noun with its article.

    >>> noun("InstanceDict")
    'an instance dict'
    """
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


LONGEST_TEXT = 80  # of a value in a message


def shown(value: object) -> str:
    """The `repr` of a plain value, cut where it is long; Python does not write every int.

    >>> shown("a" * 100)[-5:], shown(1 << 20_000), shown((1, 1 << 20_000))
    ('aa...', 'an int of 20001 bits', 'a tuple')
    """
    try:
        text = repr(value)
    except ValueError:
        if isinstance(value, int):
            return f"{noun(type(value).__name__)} of {value.bit_length()} bits"
        return noun(type(value).__name__)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def described(value: object) -> str:
    """What was given in the place of something else: plain values as they are, others by class.

    >>> described(5), described([1.0] * 1000)
    ('5', 'a list')
    """
    plain = isinstance(value, int | float | str | bool | type(None))
    return shown(value) if plain else noun(type(value).__name__)


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint at the names that are like a mistyped one.

    >>> nearest("inducter", ["eager", "inductor"]), nearest("x", ["eager"])
    ("; did you mean 'inductor'?", '')
    """
    near = difflib.get_close_matches(str(word), known, 3, 0.7)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "item"), counted(3, "entry")
    ('1 item', '3 entries')
    """
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count} {what if count == 1 else plural}"
