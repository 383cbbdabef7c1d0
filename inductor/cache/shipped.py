"""A compiled graph that another process has shipped (`shipping.py`), as a callable again.

In: a `Shipment`. Out: the callable, whose libraries lie in a folder that is laid out as the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamo.aot.plain_graphs import CachedGraph
from dynamo.base.config import config as dynamo_config
from dynamo.base.fallbacks import NOWHERE
from dynamo.store import gpu_facts
from dynamo.store.content import Store
from dynamo.store.processor import processor
from inductor.cache.graph_cache import read_record
from inductor.cache.graph_key import own_source
from inductor.cache.graph_rows import read_rows
from inductor.cache.kernel_binaries import look_also_in
from inductor.config import settings_of
from inductor.driver import cpu

FOLDER = "shipped"
BINARIES = "binary/"


@dataclass(frozen=True, slots=True)
class Shipment:
    """record, graph: see the top of the file. files: content by name in the folder. devices: the
    GPUs on which its tensors are."""

    record: bytes
    graph: bytes
    files: Mapping[str, bytes]
    devices: tuple[str, ...] = ()


def facts_now(devices: Iterable[str] = ()) -> dict[str, str]:
    """What must be the same where a shipment runs. devices: the GPUs that it names."""
    return {
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": platform.python_version(),
        "dynamo-jit": own_source(cpu.cache_store()),
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
    """The callable. digest: names the folder for its files. Errors: Damaged, Stale."""
    captured = _Captured(shipment.graph)
    store = Store(_folder(shipment, digest))
    if any(name.startswith(BINARIES) for name in shipment.files):
        look_also_in(store)
    made, _ = read_record(
        shipment.record, names_given(captured, settings_of(mode, options)), store)
    return made


def _folder(shipment: Shipment, digest: str) -> Path:
    """The folder with the files of a shipment, whose contents are as they were shipped."""
    root = Path(dynamo_config.cache_dir) / FOLDER / digest
    try:
        return _filled(shipment, root)
    except OSError:  # read-only: for this process
        return _filled(shipment, Path(tempfile.mkdtemp(prefix="dynamo-jit-")))


def _filled(shipment: Shipment, root: Path) -> Path:
    store = Store(root)
    for name, content in shipment.files.items():
        path = root / name
        if os.path.normpath(name) != name or name.startswith(("/", "..")):
            raise OSError(f"{name} is no name of a file in a folder")
        known = path.read_bytes() if path.is_file() else None
        if known is None or hashlib.sha256(known).digest() != hashlib.sha256(content).digest():
            store.put(path, content)
    return root
