"""Errors that handlers of signals raise, as one that limits the time: they are about nothing that
runs when the signal comes, and the program is to see them."""

from __future__ import annotations

import functools
import signal
import traceback
from typing import Any


def is_of_signal(error: BaseException) -> bool:
    """True where the handler of a signal, one written in Python, has raised the error."""
    ran = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    handlers = [_code_of(signal.getsignal(number)) for number in signal.valid_signals()]
    return any(code is own for own in handlers if own is not None for code in ran)


def _code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        own = [vars(base).get("__call__") for base in type(handler).__mro__]
        handler = next((call for call in own if call is not None), None)
    return getattr(handler, "__code__", None)
