"""The user's lines among those of a stack trace.

In: the text that a graph's node keeps. Out: the innermost line that is not torch's own.

    >>> user_line('File "m.py", line 3, in f\\n    y = x.sin()').partition("\\n")[0]
    'm.py:3 in f'
"""

from __future__ import annotations

import importlib.util
import os
import re

_spec = importlib.util.find_spec("torch")
TORCH = os.path.dirname(_spec.origin) + os.sep if _spec and _spec.origin else "torch" + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.*)\n?(.*)')


def user_frame(trace: str | None) -> tuple[str, str, str, str] | None:
    """File, line, function and text of the innermost frame that is not torch's, or of the innermost
    one; None without any."""
    found: list[tuple[str, str, str, str]] = _FRAME.findall(trace or "")
    own = [frame for frame in found if not frame[0].startswith(TORCH)] or found
    return own[-1] if own else None


def user_line(trace: str | None) -> str:
    """That frame as text, with its code on a second line; "" without any."""
    frame = user_frame(trace)
    if frame is None:
        return ""
    file, line, function, text = frame
    return f"{file}:{line} in {function}" + (f"\n    {text.strip()}" if text else "")
