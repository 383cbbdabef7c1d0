"""Calling an ATen graph whose sizes are known at a call: one library, a launcher for each sizes.

In: an ATen graph with SymInts in `meta["val"]`, and the compiler for it at given hints. Out: a
callable for all sizes. New sizes are bound: shapes, strides and the memory plan are evaluated and a
launcher is made, which takes no C++ compiler. Sizes at which an assumption of the compile does not
hold get a variant of their own, compiled with them as hints; beyond `MOST_VARIANTS` the graph runs
as ATen operators.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.base import logs
from dynamo.base.counters import counters, timed
from inductor import cpu, metrics
from inductor.codegen.bind import Binder
from inductor.lowering.sizes import Source

Compiled = Callable[..., Any]
MOST_VARIANTS = 8
MOST_BOUND = 128


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Compiled code for all sizes at which its assumptions hold. tensors: inputs that are some."""

    path: str
    binder: Binder
    sources: tuple[Source, ...]
    tensors: tuple[int, ...]


class ForAllSizes:
    """A compiled graph that takes its flat inputs, numbers among them."""

    def __init__(
        self, module: torch.fx.GraphModule, compile_for: Callable[[Sequence[int] | None], Variant]
    ) -> None:
        self.module = module
        self.compile_for = compile_for
        self.context = contextvars.copy_context()  # the settings of this compile
        self.lock = threading.Lock()
        first = compile_for(None)
        self.variants = [first]
        self.key_of = _reader(first.sources)
        self.launcher_for = functools.lru_cache(MOST_BOUND)(self._bind)
        count = sum(node.op == "placeholder" for node in module.graph.nodes)
        self.tensors = None if len(first.tensors) == count else first.tensors

    def __call__(self, *inputs: Any) -> Any:
        launcher = self.launcher_for(self.key_of(inputs))
        if launcher is None:
            counters["inductor"]["calls run as ATen operators for their sizes"] += 1
            return self.module.forward(*inputs)
        if self.tensors is not None:
            return launcher(*[inputs[n] for n in self.tensors])
        return launcher(*inputs)

    def _bind(self, key: tuple[int, ...]) -> Compiled | None:
        with self.lock, timed("inductor.bind"):
            variant = self._variant_for(key)
            if variant is None:
                return None
            metrics.count("sizes_bound")
            return cpu.launch(variant.path, variant.binder.bind(key))

    def _variant_for(self, key: tuple[int, ...]) -> Variant | None:
        for variant in self.variants:
            if variant.binder.holds(*key):
                return variant
        log = logs.log("dynamic")
        if len(self.variants) == MOST_VARIANTS:
            log.emit(lambda: f"a graph has {MOST_VARIANTS} variants; for {key} it runs as ATen")
            return None
        log.emit(lambda: f"a graph is compiled once more, for {key}: an assumption does not hold")
        variant = self.context.run(self.compile_for, key)
        if not variant.binder.holds(*key):
            return None
        self.variants.append(variant)
        return variant


def _reader(sources: Sequence[Source]) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """A function from inputs to the values of the symbols."""
    parts = [
        f"inputs[{source.input}]" + ("" if source.dim is None else f".size({source.dim})")
        for source in sources
    ]
    return eval(f"lambda inputs: ({', '.join(parts)},)")  # type: ignore[no-any-return] # noqa: S307
