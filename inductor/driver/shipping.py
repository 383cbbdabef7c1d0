"""A compiled graph as bytes for another process or machine, without the compiler.

In: a captured graph and its inputs. Out: a `Shipment`: how the callable was made (the record of
`graph_cache.py`), the libraries that it needs, and the captured graph for calls that run as it was
captured. `shipped.py` makes the callable again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.aot.flat_programs import has_learners
from dynamo.aot.plain_graphs import rows_of
from dynamo.aot.records import Unsupported
from dynamo.base import errors
from dynamo.base.graph_copies import copy_module
from dynamo.store.artifacts import archive_of
from dynamo.store.content import cache_store, watched_files
from dynamo.store.records import Uncacheable
from inductor.cache.graph_cache import read_record, write_record
from inductor.cache.graph_rows import write_rows
from inductor.cache.kernel_binaries import SUFFIX
from inductor.cache.launched import watched
from inductor.cache.shipped import Shipment, names_given
from inductor.config import config, settings_of
from inductor.driver.compile_fx import compile_whole

# Operators with kernels that are compiled at the first call, as records name them.
OWN_KERNELS = (
    b"dynamo_jit::attention", b"dynamo_jit::flex_attention", b"dynamo_jit::topk_of_rows",
    b"dynamo_jit::window_sums",
)  # fmt: skip


def ship(
    gm: fx.GraphModule, inputs: list[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Shipment:
    """Compiles the graph for shipping. Errors: Unsupported, with what can't be shipped."""
    if has_learners(inputs):
        raise errors.Unsupported("its results would need gradients: call it under torch.no_grad()")
    settings = settings_of(mode, options)
    store = cache_store()
    try:
        graph, devices = write_rows(gm), _gpus_of(gm)
        copy = copy_module(gm)
        given = names_given(copy, settings)
        with config.patch(**settings), watched() as seen:
            made = compile_whole(copy, inputs, settings)
        if made is None:
            raise Unsupported("a part of its graph runs as it was captured, or is compiled later")
        record = write_record((made, seen.fallbacks), given, seen, store)
    except (Unsupported, Uncacheable, pickle.PicklingError) as error:
        raise errors.Unsupported(str(error)) from None
    with watched_files() as files:
        read_record(record, given, store)
    has_kernels = any(name in record for name in OWN_KERNELS)
    binaries = _binaries(made, inputs) if has_kernels else ()
    libraries, kernels = (archive_of(store, paths)[0] for paths in (files, binaries))
    return Shipment(record, graph, libraries, kernels, devices)


def _gpus_of(gm: fx.GraphModule) -> tuple[str, ...]:
    """The GPUs on which tensors of the graph are."""
    devices = rows_of(gm).devices()
    return tuple(sorted(str(device) for device in devices if device.type == "cuda"))


def _binaries(made: Callable[..., Any], inputs: list[Any]) -> set[Path]:
    """The files of kernels that are compiled at the first call: it is called with copies."""
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    gpus = [value.device for value in given if isinstance(value, torch.Tensor) and value.is_cuda]
    with torch.random.fork_rng({gpu.index for gpu in gpus}), watched_files() as files:
        with torch.no_grad():
            made(*given)
    return {path for path in files if path.suffix == SUFFIX}
