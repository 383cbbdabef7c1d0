"""A compiled graph that another process has shipped (`shipping.py`), as a callable again.

In: a `Shipment`. Out: the callable, whose libraries lie in a folder that is laid out as the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.plain_graphs import CachedGraph
from dynamo.base.fallbacks import NOWHERE
from dynamo.store import gpu_facts
from dynamo.store.artifacts import load_cache_artifacts, unpack
from dynamo.store.content import Store, cache_store
from dynamo.store.folder import LOADED
from dynamo.store.processor import processor
from dynamo.store.versions import versions
from inductor.cache.graph_cache import read_record
from inductor.cache.graph_rows import read_rows
from inductor.config import settings_of


@dataclass(frozen=True, slots=True)
class Shipment:
    """record: how the callable was made; graph: the captured one. files: archive of the libraries;
    binaries: of kernels that are compiled at the first call, or nothing (see
    `dynamo/store/artifacts.py`). devices: the GPUs on which its tensors are."""

    record: bytes
    graph: bytes
    files: bytes
    binaries: bytes
    devices: tuple[str, ...] = ()


def facts_now(devices: Iterable[str] = ()) -> dict[str, str]:
    """What must be the same where a shipment runs. devices: the GPUs that it names."""
    return {
        **versions(),
        "processor": processor().text,
        **{name: _kind_of(name) for name in devices},
    }


def _kind_of(name: str) -> str:
    number = torch.device(name).index or 0
    there = torch.cuda.is_available() and number < torch.cuda.device_count()
    return gpu_facts.kind_of_gpu(number) if there else "no GPU"


class _Captured:
    """Stands for the captured graph, which is made when a call needs it."""

    def __init__(self, graph: bytes) -> None:
        self.rows = graph

    @functools.cached_property
    def _call(self) -> Any:
        return CachedGraph(None, lambda: read_rows(self.rows)).module().forward

    def forward(self, *inputs: Any) -> Any:
        return self._call(*inputs)


def names_given(captured: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What records refer to by name. Nothing is compiled at a call, for which they have more; the
    program's lines are not shipped."""
    return {"settings": settings, "site": NOWHERE, "gm": captured, "traces": (),
            "compiler": object(), "keeping": object()}  # fmt: skip


def unship(
    shipment: Shipment, digest: str, mode: str | None, options: Mapping[str, Any] | None
) -> Any:
    """The callable. digest: names the folder for its files. Errors: Stale."""
    captured = _Captured(shipment.graph)
    store = _filled(shipment.files, digest)
    if shipment.binaries:
        load_cache_artifacts(shipment.binaries)
    made, _ = read_record(
        shipment.record, names_given(captured, settings_of(mode, options)), store)
    return made


def _filled(files: bytes, digest: str) -> Store:
    """A store of the files of a shipment, whose contents are as they were shipped: this machine's
    cache may have other libraries under their keys."""
    store = Store(cache_store().root / LOADED / digest)
    if files:
        unpack(files, store, replaces=True)
    return store
