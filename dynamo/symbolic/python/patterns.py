"""Methods of compiled regular expressions that give matches one by one, of constant texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_stand_in
from dynamo.symbolic.python.iterators import MatchIteratorVar
from dynamo.symbolic.python.lists import TupleVar


@rule([re.Pattern.finditer])
def finditer(tx: Frame, pattern: Var, text: Var, *rest: Var) -> Var | None:
    parts = [pattern, text, *rest]
    if not all(part.is_constant() for part in parts):
        return None
    values = [part.as_constant() for part in parts]
    found = tx.trace.run_real(lambda: list(re.Pattern.finditer(*values)))
    matches = TupleVar([tx.trace.constant(match) for match in found])
    return MatchIteratorVar(matches, tuple(values))


def finditer_text(pattern: Any, string: Any, flags: Any = 0) -> Any:
    """`re.finditer(pattern, string)`, without a look into the cache of `re`."""
    return re.compile(pattern, flags).finditer(string)


@rule([re.finditer])
def find_in_text(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    return inline_stand_in(tx, finditer_text, list(args), kwargs)


def subn(pattern: Any, repl: Any, string: Any, count: int = 0) -> tuple[Any, int]:
    """`pattern.subn(function, string)`."""
    parts, end, number = [], 0, 0
    for match in pattern.finditer(string):
        if count and number >= count:
            break
        parts.append(string[end : match.start()])
        made = repl(match)
        if made is not None:
            parts.append(made)
        end = match.end()
        number += 1
    if not number:
        return string, 0
    parts.append(string[end:])
    return string[:0].join(parts), number


def sub(pattern: Any, repl: Any, string: Any, count: int = 0) -> Any:
    """`pattern.sub(function, string)`."""
    return subn(pattern, repl, string, count)[0]


def sub_text(pattern: Any, repl: Any, string: Any, count: int = 0, flags: Any = 0) -> Any:
    """`re.sub(pattern, function, string)`."""
    return re.compile(pattern, flags).sub(repl, string, count)


def subn_text(pattern: Any, repl: Any, string: Any, count: int = 0, flags: Any = 0) -> Any:
    """`re.subn(pattern, function, string)`."""
    return re.compile(pattern, flags).subn(repl, string, count)


def _register(real: Any, stand_in: Callable[..., Any]) -> None:
    @rule([real])
    def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        text = kwargs.get("string", args[2] if len(args) > 2 else None)
        if len(args) < 2 or args[1].is_constant() or text is None or not text.is_constant():
            return None
        return inline_stand_in(tx, stand_in, list(args), kwargs)


for _real, _stand_in in {
    re.Pattern.sub: sub, re.Pattern.subn: subn, re.sub: sub_text, re.subn: subn_text,
}.items():
    _register(_real, _stand_in)
