"""What `nn.Module.__call__` does with one hook, as Python functions that are traced."""

from __future__ import annotations

from typing import Any


def run_before(hook: Any, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `forward`, as `Module.__call__` finds them."""
    given = hook(module, args)
    if given is None:
        return args
    return given if isinstance(given, tuple) else (given,)


def run_behind(hook: Any, module: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result of the call."""
    given = hook(module, args, result)
    return result if given is None else given
