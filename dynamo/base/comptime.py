"""`comptime`: code of the program that runs while it is compiled, to look at what is known there.

    comptime.print_graph()                  # in a compiled function: the graph up to this line

    @comptime
    def look(ctx):                          # runs while compiling, with a context of these methods
        ctx.print_locals()

In a program that is not compiled none of it does anything. A function may be traced more than once
before it is compiled; each time it is shown again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Comptime:
    """What `dynamo.comptime` is: each method shows something of the compile, on stdout."""

    def __call__(
        self, fn: Callable[[Any], Any], fallback_fn: Callable[[], Any] = lambda: None
    ) -> Any:
        """Runs `fn(context)` while compiling; where the program is not compiled, `fallback_fn()`.

        fn: free variables of it hold constants, or for other values their description.
        """
        return fallback_fn()

    def print(self, *values: Any) -> None:
        """What is known of values."""

    def print_graph(self) -> None:
        """The graph that is captured so far."""

    def print_bt(self) -> None:
        """The lines of the program that have led here, outermost first."""

    def print_locals(self) -> None:
        """What is known of the local variables."""

    def print_value_stack(self) -> None:
        """What is known of the values that the line has evaluated, outermost first."""

    def print_guards(self) -> None:
        """What is assumed so far, and why."""

    def breakpoint(self) -> None:
        """Stops in the debugger, where `self` is the context and `self.frame` the traced frame."""


comptime = Comptime()
