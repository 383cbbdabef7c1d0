"""While a program is traced, torch's functional collectives wait at once.

In eager their result is a tensor subclass that waits when something reads it. In a graph the wait
is an operation of its own, which the scheduler may put off. Another thread that runs collectives
meanwhile waits earlier than it had to, and no more.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

MODULE = "torch.distributed._functional_collectives"
NAME = "_are_we_tracing"


class _Tracing:
    """How many traces run, in all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.own: Any = None

    def enter(self) -> None:
        module: Any = sys.modules.get(MODULE)
        with self.lock:
            self.depth += 1
            if module is not None and self.own is None:
                self.own = getattr(module, NAME)
                setattr(module, NAME, lambda: True)

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and self.own is not None:
                setattr(sys.modules[MODULE], NAME, self.own)
                self.own = None


_tracing = _Tracing()
enter, leave = _tracing.enter, _tracing.leave
