"""Running an operator on the fakes of a graph, for passes that put new nodes into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dispatch.python import enable_python_dispatcher

from dynamo.shapes.fake import Fake


def fake_runner(value: Any) -> Callable[..., Any]:
    """A function (operator, *arguments) -> fakes of its results. value: any fake of the graph."""
    if isinstance(value, Fake):
        run: Callable[..., Any] = value.world.run
        return run
    mode = value.fake_mode

    def run_symbolic(target: Any, *args: Any, **kwargs: Any) -> Any:
        with mode, enable_python_dispatcher():
            return target(*args, **kwargs)

    return run_symbolic
