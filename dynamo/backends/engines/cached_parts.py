"""What an engine's converter has made of a part, cached on disk.

In: an engine with a converter, a part, examples of its inputs. Out: the converted model as bytes,
without weights: those are put in when it is loaded, so a model with other weights is the same file.
The key is that of compiled graphs (`inductor.cache.graph_key`): the part's text, its inputs,
settings, processor, the versions of torch and of the engine, and this package's own files. Nothing
is read that another user has written, or whose bytes are not those of its digest.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from typing import Any

import torch
from torch import fx

from dynamo.backends.engines.records import Engine
from dynamo.base import logs
from dynamo.store.content import Key, Store, make_key
from dynamo.store.folder import keep_small
from inductor.cache.graph_cache import report_defect
from inductor.cache.graph_key import NoKey, parts_of_graph
from inductor.config import config
from inductor.driver import cpu

SUFFIX = ".model"
DIGEST = hashlib.sha256().digest_size


def converted(engine: Engine, module: fx.GraphModule, examples: list[torch.Tensor]) -> bytes:
    """The part as the engine reads it, found or made. Errors: what the converter or the engine
    raises for a part that it does not take."""
    assert engine.convert is not None and engine.load is not None
    module = _numbered(module)
    store = cpu.cache_store()
    key = _key_of(engine, module, examples, store)
    known = None if key is None else _find(key, store)
    if known is not None:
        return known
    made = engine.convert(module, examples)
    engine.load(made, {})  # it may refuse what its converter takes
    if key is not None:
        _keep(key, made, store)
    return made


def _numbered(module: fx.GraphModule) -> fx.GraphModule:
    """A copy whose inputs have numbers: what they are called depends on the caller."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for number, node in enumerate(graph.find_nodes(op="placeholder")):
        node.name = node.target = f"input_{number}"
    return fx.GraphModule(module, graph)


def _key_of(
    engine: Engine, module: fx.GraphModule, examples: list[torch.Tensor], store: Store
) -> Key | None:
    if not config.graph_cache:
        return None
    try:
        return make_key("engine", parts_of_graph(module, examples, _versions(engine), store))
    except NoKey as why:
        reason = why.reason
    except Exception as defect:  # it can be converted all the same
        reason = report_defect("the key of an engine's model", defect)
    logs.log("cache").emit(lambda: f"this part of {engine.name} is not cached: {reason}")
    return None


@functools.cache
def _versions(engine: Engine) -> str:
    found = [engine.name]
    for package in engine.packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} {_own_version(package)}")
    return ", ".join(found)


def _own_version(package: str) -> str:
    module: Any = importlib.import_module(package)
    return str(getattr(module, "__version__", "?"))


def _find(key: Key, store: Store) -> bytes | None:
    content = store.read(key, SUFFIX)
    log = logs.log("cache")
    if content is None:
        log.emit(lambda: f"{key.kind} {key.digest}: {store.explain_miss(key)}")
        return None
    if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
        log.emit(lambda: f"{key.kind} {key.digest}: it is damaged")
        return None
    log.emit(lambda: f"{key.kind} {key.digest}: found")
    return content[DIGEST:]


def _keep(key: Key, made: bytes, store: Store) -> None:
    try:
        store.write(key, SUFFIX, hashlib.sha256(made).digest() + made)
        store.describe(key)
        keep_small()
    except OSError as error:
        reason = str(error)
        logs.log("cache").emit(lambda: f"{key.kind} {key.digest}: it is not cached, {reason}")
