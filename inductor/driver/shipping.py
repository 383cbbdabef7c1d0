"""A compiled graph as bytes for another process or machine, without the compiler.

In: a captured graph and its inputs. Out: a `Shipment`: how the callable was made (the record of
`graph_cache.py`), the libraries that it needs, and the captured graph for calls that run as it was
captured. `shipped.py` makes the callable again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Unsupported
from dynamo.background.graphs import copied
from dynamo.base import errors
from dynamo.store.content import Store
from dynamo.store.toolchain import last_toolchain_file
from inductor.cache.graph_cache import Uncacheable, read_record, write_record
from inductor.cache.graph_key import NoKey
from inductor.cache.graph_rows import plain_rows, write_rows
from inductor.cache.kernel_binaries import noting
from inductor.cache.launched import watched
from inductor.cache.shipped import Shipment, names_given
from inductor.config import config, settings_of
from inductor.driver import cpu
from inductor.driver.compile_fx import compile_whole
from inductor.driver.known_results import needs_gradients

OWN_KERNELS = b"dynamo_jit::attention"  # has kernels that are compiled at the first call


@dataclass(frozen=True, slots=True)
class _Noting(Store):
    """A store that notes what is read of it."""

    seen: set[Path] = field(default_factory=set)

    def path(self, key: Any, suffix: str) -> Path:
        # `Store.path` by name: `super()` is not found in a class with slots.
        found = Store.path(self, key, suffix)
        self.seen.add(found)
        return found


def ship(
    gm: fx.GraphModule, inputs: list[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Shipment:
    """Compiles the graph for shipping. Errors: Unsupported, with what can't be shipped."""
    if needs_gradients(inputs):
        raise errors.Unsupported("its results would need gradients: call it under torch.no_grad()")
    settings = settings_of(mode, options)
    store = _Noting(cpu.cache_store().root)
    try:
        graph, devices = write_rows(gm), _gpus_of(gm)
        copy = copied(gm)
        given = names_given(copy, settings)
        with config.patch(**settings), watched() as seen:
            made = compile_whole(copy, inputs, settings)
        if made is None:
            raise Unsupported("a part of its graph runs as it was captured, or is compiled later")
        record = write_record((made, seen.fallbacks), given, seen, store)
    except (Unsupported, Uncacheable, NoKey, pickle.PicklingError) as error:
        raise errors.Unsupported(str(error)) from None
    names = {str(Path(path).relative_to(store.root)) for _, path, *_ in seen.launches}
    store.seen.add(last_toolchain_file(store))
    read_record(record, given, store)  # notes the libraries that all graphs share
    names |= {str(path.relative_to(store.root)) for path in store.seen if path.is_file()}
    files = {name: (store.root / name).read_bytes() for name in names}
    if OWN_KERNELS in record:
        files |= _binaries(made, inputs)
    return Shipment(record, graph, files, devices)


def _gpus_of(gm: fx.GraphModule) -> tuple[str, ...]:
    """The GPUs on which tensors of the graph are."""
    devices = {device for _, _, _, _, device, *_ in plain_rows(gm)[1]}
    return tuple(sorted(str(device) for device in devices if device.type == "cuda"))


def _binaries(made: Callable[..., Any], inputs: list[Any]) -> dict[str, bytes]:
    """The files of kernels that are compiled at the first call: it is called with copies."""
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    gpus = [value.device for value in given if isinstance(value, torch.Tensor) and value.is_cuda]
    with torch.random.fork_rng({gpu.index for gpu in gpus}), noting() as found, torch.no_grad():
        made(*given)
    return found
