"""The user's lines among those of a stack trace.

In: the text that a graph's node keeps. Out: the innermost line that is not torch's own.

    >>> user_line('File "m.py", line 3, in f\\n    y = x.sin()').partition("\\n")[0]
    'm.py:3 in f'
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Sequence

_spec = importlib.util.find_spec("torch")
TORCH = os.path.dirname(_spec.origin) + os.sep if _spec and _spec.origin else "torch" + os.sep
_RANGES = "  Ranges: "
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.*)\n?(.*)')


def frames_of(trace: str | None) -> list[tuple[str, str, str, str]]:
    """File, line, function and text of all frames, outermost first.

    >>> frames_of('File "m.py", line 3, in f\\n    y = x.sin()')
    [('m.py', '3', 'f', '    y = x.sin()')]
    """
    found: list[tuple[str, str, str, str]] = _FRAME.findall(trace or "")
    return found


def user_frame(trace: str | None) -> tuple[str, str, str, str] | None:
    """File, line, function and text of the innermost frame that is not torch's, or of the innermost
    one; None without any."""
    found = frames_of(trace)
    own = [frame for frame in found if not frame[0].startswith(TORCH)] or found
    return own[-1] if own else None


def user_place(trace: str | None) -> tuple[str, int] | None:
    """File and line of that frame: quickly, for many nodes.

    >>> user_place('File "m.py", line 3, in f\\n    y = x.sin()')
    ('m.py', 3)
    """
    place, end = None, len(trace or "")
    while trace and (start := trace.rfind('File "', 0, end)) >= 0:
        file, _, rest = trace[start + 6:end].partition('", line ')
        number = rest.partition(",")[0].partition("\n")[0]
        if number.isdigit():
            if not file.startswith(TORCH):
                return file, int(number)
            place = place or (file, int(number))
        end = start
    return place


def user_line(trace: str | None) -> str:
    """That frame as text, with its code on a second line; "" without any."""
    frame = user_frame(trace)
    if frame is None:
        return ""
    file, line, function, text = frame
    return f"{file}:{line} in {function}" + (f"\n    {text.strip()}" if text else "")


def with_ranges(trace: str | None, names: Sequence[str]) -> str:
    """The trace of an operation inside of the program's `record_function`s, outermost first.

    >>> ranges_in(with_ranges('File "m.py", line 3, in f', ["attention", "scores"]))
    ('attention', 'scores')
    """
    return f"{trace or ''}\n{_RANGES}{json.dumps(list(names))}"


def ranges_in(trace: str | None) -> tuple[str, ...]:
    """These names."""
    _, found, names = (trace or "").rpartition(_RANGES)
    return tuple(json.loads(names)) if found else ()
