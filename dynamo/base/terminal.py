"""Terminals that show tables, colours and bars: those that `rich` writes to, where it is installed.

In: a stream. Out: a console of rich, or None: then plain text is written.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, TextIO


def rich_module(name: str) -> Any:
    """A module of rich, None where rich is not installed."""
    try:
        return importlib.import_module(f"rich.{name}")
    except ImportError:
        return None


def console_of(stream: TextIO) -> Any:
    """A console over a stream; None without rich, and where the stream is no terminal that can show
    more than lines of text."""
    if not stream.isatty():
        return None
    module = rich_module("console")
    if module is None:
        return None
    console = module.Console(file=stream, highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def show(what: Any) -> None:
    """Prints what has a form for rich (`__rich__`), or its text."""
    console = console_of(sys.stdout)
    if console is None:
        print(what)
    else:
        console.print(what)
