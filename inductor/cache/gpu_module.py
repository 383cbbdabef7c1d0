"""A compiled graph on a GPU as plain data, and what another process makes of it.

In: the text of a generated module (`codegen/python_wrapper.py`), its kernels as binaries, and what
belongs to the call. Out: the callable, or what binds it to sizes that are known at a call. Only the
text's function `make` runs there; its kernels are loaded by the driver. The module as a whole is
imported, with Triton, when a tensor comes for which no kernel was compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import torch

from dynamo.aot.recipes import noted, recipe_of
from dynamo.base import logs
from dynamo.store.content import cache_store, make_key
from inductor.cache.launched import title_of
from inductor.cache.recorded import GpuRecord, gpu_records
from inductor.codegen.bind import broken_assumption, where_it_holds
from inductor.codegen.python_wrapper import host_part
from inductor.dynamic_shapes.symbolic import Variant
from inductor.ir.extent import Sizes
from inductor.lowering.sizes import Source
from inductor.runtime.binaries import Binary
from inductor.runtime.cuda_graphs import Graphing
from inductor.runtime.modules import import_file
from inductor.runtime.triton_launch import CachedPreparation, Preparation, named, on_device

Bind = Callable[[tuple[int, ...]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, eq=False)
class GpuModule:
    """text: of the module. binaries: of its launchers, in their order; None where a kernel is
    compiled when it is needed. graphing: makes it a call that is recorded as a CUDA graph. steps,
    functions: see `GpuRecord`."""

    text: str
    device: torch.device
    constants: tuple[torch.Tensor, ...]
    binaries: tuple[Binary | None, ...]
    graphing: Graphing | None
    steps: list[Any]
    functions: Mapping[str, str]


def binaries_of(preparation: Preparation) -> tuple[Binary | None, ...]:
    """What was compiled ahead for the launchers of a module."""
    return tuple([launcher.binary() for launcher in preparation.launchers])


def with_recipe(call: Callable[..., Any], module: GpuModule) -> Callable[..., Any]:
    """The call, which another process can make of this."""
    return noted(call, loaded_call, module)  # type: ignore[no-any-return]


def loaded_call(module: GpuModule) -> Callable[..., Any]:
    """The callable of a module of known sizes. Errors: NotLoaded."""
    return with_recipe(_loaded(module)(), module)


def by_sizes(bound: Callable[..., Callable[..., Any]], module: GpuModule | None) -> Bind:
    """What makes the callable for values of the symbols, as a `Variant` has it. module: what
    another process may make it of."""

    def bind(values: tuple[int, ...]) -> Callable[..., Any]:
        return bound(*values)

    return bind if module is None else noted(bind, loaded_bind, module)  # type: ignore[no-any-return]


def loaded_bind(module: GpuModule) -> Bind:
    """`by_sizes` of a module whose sizes are known at a call. Errors: NotLoaded."""
    return by_sizes(_loaded(module), module)


def loaded_variant(
    module: GpuModule, sizes: Sizes, sources: tuple[Source, ...], tensors: tuple[int, ...]
) -> Variant:
    """The code of such a module. Errors: NotLoaded."""
    broken = functools.partial(broken_assumption, sizes)
    return Variant(where_it_holds(sizes), broken, loaded_bind(module), sources, tensors, sizes)


def module_of(variant: Variant) -> GpuModule | None:
    """What its code can be made of elsewhere; None for code of a CPU, and what is not kept."""
    recipe = recipe_of(variant.bind)
    return recipe.given[0] if recipe is not None and recipe.make is loaded_bind else None


def _loaded(module: GpuModule) -> Callable[..., Callable[..., Any]]:
    """What binds a module to the values of its symbols, if it has any."""
    whole: list[ModuleType] = []

    def import_whole() -> ModuleType:
        if not whole:
            whole.append(_imported(module.text))
        return whole[0]

    scope: dict[str, Any] = {}
    exec(compile(host_part(module.text, module.device), "<cached graph>", "exec"), scope)
    preparation = CachedPreparation(module.device, iter(module.binaries), import_whole)
    constants = list(module.constants)
    bind = scope["make"](constants, preparation.prepare, _no_slow)
    what = logs.compile_now()
    gpu_records.append(GpuRecord(module.steps, module.functions, what))
    title = title_of(what)

    def bound(*values: int) -> Callable[..., Any]:
        return finished(bind(*values), module.device, constants, module.graphing, title)

    return bound


def finished(
    call: Callable[..., Any], device: torch.device, constants: Sequence[torch.Tensor],
    graphing: Callable[..., Any] | None, title: str,
) -> Callable[..., Any]:
    """The function of a generated module as it is called. title: what profilers call it."""
    if graphing is not None:
        call = graphing(call, constants)  # inside of `on_device`: it replays on its own device
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        call = on_device(call, device.index or 0)
    return named(call, title)


def _no_slow(*facts: Any) -> NoReturn:
    raise AssertionError("a kernel that Triton can't do is not cached")


def _imported(text: str) -> ModuleType:
    store = cache_store()
    path, _ = store.file_of(make_key("triton", {"source": text}), ".py", text.encode())
    return import_file(f"inductor_generated_{path.stem}", path)
