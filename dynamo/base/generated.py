"""Functions that are written at run time, with a source that debuggers and tracebacks show.

    >>> double = function_of("def call(x):\\n    return 2 * x", "call", "example", {})
    >>> double(4), linecache.getline(double.__code__.co_filename, 2).strip()
    (8, 'return 2 * x')
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import Any

_numbers = itertools.count()


def function_of(source: str, name: str, what: str, scope: dict[str, Any]) -> Any:
    """The function of that name in a source. what: a word for the file's name. scope: its globals.
    The source is kept as long as the function."""
    filename = f"<dynamo {what} {next(_numbers)}>"
    exec(compile(source, filename, "exec"), scope)
    made = scope[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    weakref.finalize(made, linecache.cache.pop, filename, None)
    return made
