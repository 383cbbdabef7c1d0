"""Nouns and numbers in the messages for users."""

from __future__ import annotations

import re


def noun(name: str) -> str:
    """The name of a class as a noun with its article.

    >>> noun("InstanceDict")
    'an instance dict'
    """
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "item"), counted(3, "entry")
    ('1 item', '3 entries')
    """
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count} {what if count == 1 else plural}"
