"""Kernels of fixed texts (attention) as binaries in the cache folder.

In: the text, what its function is compiled for, the GPU. Out: a `Binary` that an earlier process
has cached there, or one that is put there for the next: a record of a row of plain values, and the
cubin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dynamo.store.content import Key, cache_store, make_key
from dynamo.store.gpu_facts import kind_of_gpu, parts_of_gpus
from dynamo.store.records import Cache, Record
from dynamo.store.versions import own_source
from inductor.config import config
from inductor.runtime.binaries import Binary

SUFFIX = ".cubin"
CACHE = Cache("GPU binaries", "the cache of GPU kernels", "Triton compiles the kernel")


def key_of(
    text: str, name: str, facts: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Key | None:
    """The key of a function of aligned tensors; None where nothing is cached."""
    gpus = parts_of_gpus()
    if not (gpus and config.graph_cache):
        return None
    del gpus["current gpu"]
    return make_key("binary", {
        "source": text, "function": name, "facts": repr(sorted(facts.items())),
        "dtypes": ", ".join([str(tensor.dtype) for tensor in tensors]),
        "gpu": kind_of_gpu(tensors[0].device.index or 0), "dynamo-jit": own_source(), **gpus})


def record_of(key: Key) -> Record:
    """Its place in the cache folder."""
    return Record(CACHE, cache_store(), key, SUFFIX)


def find(key: Key) -> Binary | None:
    """What was cached under a key."""
    record = record_of(key)
    binary = record.read(_read)
    if binary is not None:
        record.report_hit()
    return binary


def keep(key: Key, binary: Binary) -> None:
    """Puts it there, where that is possible."""
    row = json.dumps((binary.name, binary.threads, binary.shared)).encode()
    record_of(key).write(lambda: row + b"\n" + binary.cubin)


def _read(content: bytes) -> Binary:
    row, _, cubin = content.partition(b"\n")
    name, threads, shared = json.loads(row)
    return Binary(name, cubin, threads, shared)
