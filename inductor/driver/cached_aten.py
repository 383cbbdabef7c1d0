"""Compilers of ATen graphs that look into the cache on disk first.

In: what compiles ATen graphs, and what it knows beside the graph. Out: the same, but what an
earlier process has compiled of an equal graph is loaded. That is for programs whose captured graph
has no key (one with wrapper subclasses runs code of its classes where it is recorded): they are
traced and recorded in each process, and compiled in the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from inductor.cache.graph_cache import aten_entry_of

Compiled = Callable[..., Any]
AtenCompiler = Callable[[torch.fx.GraphModule, list[Any]], Compiled]


class Cached(Protocol):
    """Gives the compiler of a stage. examples: the tensors at hand, where it reads their places."""

    def __call__(
        self, compile_aten: AtenCompiler, stage: str, examples: Sequence[Any] = ()
    ) -> AtenCompiler: ...


def as_it_is(
    compile_aten: AtenCompiler, stage: str, examples: Sequence[Any] = ()
) -> AtenCompiler:
    """No cache of its own: the captured graph has a key."""
    return compile_aten


def looking(given: Mapping[str, Any]) -> Cached:
    """given: what belongs to this compile, see `cache_entry_of`."""

    def cached(
        compile_aten: AtenCompiler, stage: str, examples: Sequence[Any] = ()
    ) -> AtenCompiler:
        return functools.partial(_find_or_compile, compile_aten, stage, examples, given)

    return cached


def _find_or_compile(
    compile_aten: AtenCompiler, stage: str, examples: Sequence[Any], given: Mapping[str, Any],
    module: torch.fx.GraphModule, fakes: list[Any],
) -> Compiled:
    entry = aten_entry_of(module, fakes, stage, examples, given)
    if entry is None:
        return compile_aten(module, fakes)
    return entry.forward(lambda: compile_aten(module, fakes))
