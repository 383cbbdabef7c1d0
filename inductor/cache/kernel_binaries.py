"""Kernels of fixed texts (attention) as binaries in the cache folder.

In: the text, what its function is compiled for, the GPU. Out: a `Binary` that an earlier process
has cached there, or one that is put there for the next. A file holds a digest and the bytes that
have it: a row of plain values, and the cubin.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from dynamo.base import logs
from dynamo.base.config import config as dynamo_config
from dynamo.store.content import Damaged, Key, Store, make_key, open_store, opened, sealed
from dynamo.store.gpu_facts import kind_of_gpu, parts_of_gpus
from inductor.cache.graph_key import own_source
from inductor.cache.recorded import tell_cache
from inductor.config import config
from inductor.runtime.binaries import Binary

SUFFIX = ".cubin"
_shipped: list[Store] = []
_used: ContextVar[dict[str, bytes] | None] = ContextVar("used", default=None)


def key_of(
    text: str, name: str, facts: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Key | None:
    """The key of a function of aligned tensors; None where nothing is cached."""
    gpus = parts_of_gpus()
    if not (gpus and config.graph_cache):
        return None
    del gpus["current gpu"]
    store = open_store(dynamo_config.cache_dir)
    return make_key("binary", {
        "source": text, "function": name, "facts": repr(sorted(facts.items())),
        "dtypes": ", ".join([str(tensor.dtype) for tensor in tensors]),
        "gpu": kind_of_gpu(tensors[0].device.index or 0), "dynamo-jit": own_source(store), **gpus})


def find(key: Key) -> Binary | None:
    """What was cached under a key."""
    store = open_store(dynamo_config.cache_dir)
    reason = ""
    for each in (store, *_shipped):
        content = each.read(key, SUFFIX)
        if content is None:
            continue
        try:
            binary = _read(opened(content))
        except (Damaged, ValueError, TypeError) as why:
            reason = str(why)
            continue
        _note(key, content)
        tell_cache(f"binary {key.digest}", True, str)
        return binary
    tell_cache(f"binary {key.digest}", False, lambda: reason or store.explain_miss(key))
    return None


def keep(key: Key, binary: Binary) -> None:
    """Puts it there, where that is possible."""
    row = json.dumps((binary.name, binary.threads, binary.shared)).encode()
    content = sealed(row + b"\n" + binary.cubin)
    _note(key, content)
    try:
        open_store(dynamo_config.cache_dir).keep(key, SUFFIX, content)
    except OSError as error:
        text = f"binary {key.digest}: it is not cached, {error}"
        logs.log("cache").emit(text)


def _read(content: bytes) -> Binary:
    row, _, cubin = content.partition(b"\n")
    name, threads, shared = json.loads(row)
    return Binary(name, cubin, threads, shared)


def _note(key: Key, content: bytes) -> None:
    used = _used.get()
    if used is not None:
        used[f"{key.kind}/{key.digest[:2]}/{key.digest}{SUFFIX}"] = content


@contextlib.contextmanager
def noting() -> Iterator[dict[str, bytes]]:
    """The files that calls inside have found or kept: contents by their names in the folder."""
    found: dict[str, bytes] = {}
    token = _used.set(found)
    try:
        yield found
    finally:
        _used.reset(token)


def look_also_in(store: Store) -> None:
    """From now on binaries are also looked for in this folder."""
    if store not in _shipped:
        _shipped.append(store)
