"""Who runs a program: one record with the same few functions for each engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """compile: of a function, method, module or class, with the keywords of torch.compile."""

    name: str
    compile: Callable[..., Any]
    graph_break: Callable[[], None]
    mark_dynamic: Callable[..., None]
    mark_unbacked: Callable[..., None]
    reset: Callable[[], None]


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def eager() -> Engine:
    return Engine("eager", lambda f, **how: f, _nothing, _nothing, _nothing, _nothing)


def ours(backend: str) -> Engine:
    import dynamo

    def compile(f: Any, **how: Any) -> Any:
        return dynamo.compile(f, backend=backend, **how)

    return Engine("ours", compile, dynamo.graph_break, dynamo.mark_dynamic,
                  dynamo.mark_unbacked, dynamo.reset)  # fmt: skip


def torch_compile(backend: str) -> Engine:
    """With eager's random numbers, which its default backend leaves to a setting."""
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.fallback_random = True

    def compile(f: Any, **how: Any) -> Any:
        return torch.compile(f, backend=backend, **how)

    decorators = torch._dynamo.decorators
    return Engine("torch", compile, torch._dynamo.graph_break, torch._dynamo.mark_dynamic,
                  decorators.mark_unbacked, torch._dynamo.reset)  # fmt: skip


def engine_of(name: str, backend: str) -> Engine:
    """eager, ours or torch."""
    if name == "eager":
        return eager()
    return ours(backend) if name == "ours" else torch_compile(backend)
