"""What an engine's converter has made of a part, cached on disk.

In: an engine with a converter, a part, examples of its inputs. Out: the converted model as bytes,
without weights: those are put in when it is loaded, so a model with other weights is the same file.
The key is that of compiled graphs (`inductor.cache.graph_key`): the part's text, its inputs,
settings, processor, the versions of torch and of the engine, and this package's own files.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import torch
from torch import fx

from dynamo.backends.engines.records import Engine
from dynamo.base.graph_copies import copy_graph
from dynamo.store.content import cache_store
from dynamo.store.records import Cache, Record
from inductor.cache.graph_key import parts_of_graph
from inductor.config import config

SUFFIX = ".model"
CACHE = Cache("engine models", "the cache of models of engines", "the part is converted")


def converted(engine: Engine, module: fx.GraphModule, examples: list[torch.Tensor]) -> bytes:
    """The part as the engine reads it, found or made. Errors: what the converter or the engine
    raises for a part that it does not take."""
    assert engine.convert is not None and engine.load is not None
    module = _numbered(module)
    record = _record_of(engine, module, examples)
    cached = None if record is None else record.read(bytes)
    if record is not None and cached is not None:
        record.report_hit()
        return cached
    made = engine.convert(module, examples)
    engine.load(made, {})  # it may refuse what its converter takes
    if record is not None:
        record.write(lambda: made)
    return made


def _numbered(module: fx.GraphModule) -> fx.GraphModule:
    """A copy whose inputs have numbers: what they are called depends on the caller."""
    graph = copy_graph(module.graph)
    for number, node in enumerate(graph.find_nodes(op="placeholder")):
        node.name = node.target = f"input_{number}"
    return fx.GraphModule(module, graph)


def _record_of(
    engine: Engine, module: fx.GraphModule, examples: list[torch.Tensor]
) -> Record | None:
    if not config.graph_cache:
        return None
    store = cache_store()
    key = CACHE.key("engine", lambda: parts_of_graph(module, examples, _versions(engine)),
                    f"this part of {engine.name}")
    return None if key is None else Record(CACHE, store, key, SUFFIX)


@functools.cache
def _versions(engine: Engine) -> str:
    versions = [engine.name]
    for package in engine.packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} {_own_version(package)}")
    return ", ".join(versions)


def _own_version(package: str) -> str:
    module: Any = importlib.import_module(package)
    return str(getattr(module, "__version__", "?"))
