"""What of a captured graph is known before it is compiled: whether a result is cached on the disk,
or may be made by another process.

In: the graph, its inputs, the options. Out: answers for those who compile in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dynamo.aot.flat_programs import has_learners
from dynamo.background.examples import Examples
from dynamo.background.jobs import is_background
from dynamo.base.graph_copies import copy_module
from dynamo.graph_operators.cuts import has_cuts
from dynamo.graph_operators.gradients import has_gradients
from dynamo.graph_operators.regions import has_repeated
from inductor.cache.graph_cache import CacheEntry, cache_entry_of, may_cache
from inductor.config import config, settings_of
from inductor.driver.ahead import compile_ahead
from inductor.dynamic_shapes.specialise import is_symbolic
from inductor.dynamic_shapes.subgraphs import has_unbacked
from inductor.fx_passes.custom import run_pass
from inductor.fx_passes.pipeline import replace_patterns

# How long one graph is measured in the background, where the program's steps are slower meanwhile.
BACKGROUND_SECONDS = 0.5


def is_lazy(value: Any) -> bool:
    """True for a tensor whose memory holds its conjugate, its negative, or nothing for zeros."""
    return isinstance(value, torch.Tensor) and (
        value.is_conj() or value.is_neg() or value._is_zerotensor()
    )


def has_blocks(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> bool:
    """True where blocks that the program repeats are compiled one by one: each of a kind but the
    first is found in the cache, which knows graphs of static sizes."""
    if not has_repeated(gm) or is_symbolic(gm, example_inputs):
        return False
    with config.patch(**settings):
        return may_cache()


def with_known_calls(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> torch.fx.GraphModule:
    """The captured graph behind the passes that know torch-level calls."""
    with config.patch(**settings):
        gm = run_pass("pre_grad_custom_pass", gm)
        replace_patterns(gm, example_inputs, has_learners(example_inputs))
    return gm


def cache_entry_for(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> CacheEntry | None:
    """The place in the cache of what `compile_fx` gives; None where it is not cached as a whole."""
    gm = with_known_calls(copy_module(gm), example_inputs, settings)
    cut = (has_unbacked(gm) or has_cuts(gm) or has_gradients(gm)
           or has_blocks(gm, example_inputs, settings))  # fmt: skip
    if cut or is_symbolic(gm, example_inputs) or any(map(is_lazy, example_inputs)):
        return None
    with config.patch(**settings):
        return cache_entry_of(gm, example_inputs, {})


def settings_now(
    mode: str | None, options: Mapping[str, Any] | None, background: bool | None = None
) -> dict[str, Any]:
    """The settings of a compile. In the background little is measured, since the program uses the
    machine, unless the user says how much. Errors: ValueError."""
    settings = settings_of(mode, options)
    background = is_background() if background is None else background
    if background and not settings.keys() & {"library_kernels", "measure_seconds"}:
        settings["measure_seconds"] = min(config.measure_seconds, BACKGROUND_SECONDS)
    return settings


def is_cached(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> bool:
    """True where an earlier process has cached what `compile_fx` would make."""
    entry = cache_entry_for(gm, example_inputs, settings_now(mode, options, True))
    return entry is not None and entry.is_cached()


def prepare(
    gm: torch.fx.GraphModule, example_inputs: list[Any], examples: Examples, *,
    mode: str | None = None, options: Mapping[str, Any] | None = None,
) -> None:
    """Has another process compile the graph into the cache. examples: the inputs as data."""
    entry = cache_entry_for(gm, example_inputs, settings_now(mode, options, True))
    if entry is not None and entry.may_read() and not entry.is_cached():
        compile_ahead(gm, examples, {"mode": mode, "options": options}, entry.key)
