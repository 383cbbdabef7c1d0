"""Compiled graphs on disk: a hit goes from a captured graph to its callable with no stage between.

In: a captured graph with its example inputs, or an ATen graph, and what compiles it. Out: the
callable that an earlier process has cached under the same key (`graph_key.py`, `aten_key.py`), or
that is compiled now and cached. What is cached is how the callable was made
(`dynamo/aot/recipes.py`) of plain data, launchers of libraries that lie in the same folder (with
their digests), and what belongs to this compile: the captured program, the site, the compiler of a
backward. A backward is cached for itself when it is first compiled.

A record (`dynamo/store/records.py`) names nothing but parts of torch and of this package.
"""

from __future__ import annotations

import io
import os
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dynamo.aot.plain_graphs import CachedGraph, Rows
from dynamo.aot.recipes import recipe_of
from dynamo.aot.records import Unsupported
from dynamo.base import logs, recordings
from dynamo.base.counters import timed
from dynamo.base.fallbacks import left_to_aten
from dynamo.base.ranks import are_many
from dynamo.store.content import Key, Store, cache_store, make_key
from dynamo.store.records import Cache, Reader, Record, Uncacheable
from dynamo.store.toolchain import find_toolchain
from inductor import metrics
from inductor.cache.aten_key import constants_of, content_of, parts_of_aten
from inductor.cache.gpu_module import GpuModule, loaded_variant, module_of
from inductor.cache.graph_key import TRUSTED, changing_parts, parts_of_graph, parts_of_symbolic
from inductor.cache.graph_rows import function_of
from inductor.cache.launched import (
    LINES,
    Watched,
    convolver_of,
    library_of,
    lines_of_step,
    loaded_launch,
    own_gemm_of,
    watched,
    with_numbers,
)
from inductor.cache.over_ranks import Ranks, ranks_now
from inductor.collectives.settings import tie
from inductor.config import config
from inductor.driver.cpu import variant_of
from inductor.driver.freezing import FrozenCall
from inductor.dynamic_shapes.symbolic import Variant
from inductor.kernels.cpu.convolution_library import Convolver
from inductor.kernels.cpu.gemm_libraries import OwnGemm
from inductor.runtime import _launch
from inductor.runtime.cuda_graphs import Graphing

Compiled = Callable[..., Any]
SUFFIX = ".graph"
CACHE = Cache("graph cache", "the cache of compiled graphs", "the graph is compiled without it")
# Logs of stages that a hit leaves out.
STAGES = ("aot_graphs", "ir_pre_fusion", "ir_post_fusion", "fusion", "schedule", "output_code",
          "kernel_code", "wrapper", "inductor", "perf_hints", "autotuning")  # fmt: skip
BUILTINS = frozenset(("getattr", "slice", "set", "frozenset", "complex", "range", "bytearray"))


def cache_entry_of(
    gm: fx.GraphModule, examples: Sequence[Any], given: Mapping[str, Any]
) -> CacheEntry | None:
    """What knows the compiled graph, if anything may.

    given: what belongs to this compile, by name; records refer to it. (Its `traces`: where in the
    program the captured operations stand.)
    """
    store = cache_store()
    key = _key_of("graph", examples, store, lambda compiler: parts_of_graph(
        gm, examples, compiler))
    # `ranks_now` as the options of this compile say: a backward comes later
    return None if key is None else CacheEntry(store, key, gm, given, ranks_now())


def symbolic_entry_of(
    gm: fx.GraphModule, examples: Sequence[Any], given: Mapping[str, Any]
) -> CacheEntry | None:
    """The same of a graph for all sizes that its capture left open. given: also `symbolic`, what
    compiles it for others, and `copies` of the graph, for which the graph stands in a record."""
    store = cache_store()
    key = _key_of("graph", examples, store, lambda compiler: {
        **parts_of_symbolic(gm, examples, compiler), "sizes": "open"})
    return None if key is None else CacheEntry(store, key, gm, given, is_open=True)


def aten_entry_of(
    module: fx.GraphModule, fakes: Sequence[Any], stage: str, examples: Sequence[Any],
    given: Mapping[str, Any],
) -> CacheEntry | None:
    """The same of an ATen graph, see `aten_key.py`. No rank waits for what another one compiles:
    graphs of shards may differ, and such a wait ends by its time alone."""
    store = cache_store()
    key = _key_of("aten", fakes, store, lambda compiler: parts_of_aten(
        module, stage, examples, compiler))
    if key is None:
        return None
    constants = {f"constant {name}": value for name, value in constants_of(module).items()}
    return CacheEntry(store, key, module, {**given, **constants})


def _key_of(
    kind: str, inputs: Sequence[Any], store: Store, parts: Callable[[str], dict[str, str]]
) -> Key | None:
    """The key with these parts, if there may be one. parts: by what compiles C++ code."""
    if not may_cache():
        return None
    toolchain = find_toolchain(store)
    if not isinstance(toolchain, str):
        compiler = f"{toolchain.version} {toolchain.compile_flags} {toolchain.libraries}"
    elif any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in inputs):
        compiler = ""
    else:
        return None
    with timed("inductor.key"):
        return CACHE.key(kind, lambda: parts(compiler))


def may_cache() -> bool:
    """False where the options keep no graph: passes have no key."""
    return bool(config.graph_cache and config.kernels and not config.passes)


class CacheEntry:
    """One captured graph and its place in the store."""

    def __init__(
        self, store: Store, key: Key, gm: fx.GraphModule, given: Mapping[str, Any],
        ranks: Ranks | None = None, is_open: bool = False,
    ) -> None:
        """ranks: see `over_ranks.py`. is_open: the key does not tell for which sizes the graph was
        compiled first. What is saved for backward depends on them, so each of these compiles has a
        name of its own, which its record and the keys of its backwards have."""
        self.store, self.key, self.ranks = store, key, ranks
        traces = [node.meta.get("stack_trace") for node in gm.graph.nodes]
        self.given = {**given, "gm": gm, "keeping": self.backward, "traces": traces}
        self.gm = gm
        self.what = logs.compile_now()
        self.is_open, self.own_name = is_open, ""

    def is_cached(self) -> bool:
        """True where there is a record, which a damaged library may still spoil."""
        return self.may_read() and self.store.find(self.key, SUFFIX) is not None

    @staticmethod
    def may_read() -> bool:
        """False where a log or a report shows stages that a hit leaves out."""
        return not (recordings.wanted() or any(logs.log(name).enabled for name in STAGES))

    def forward(self, compile_now: Callable[[], Compiled]) -> Compiled:
        """The compiled graph, found or made."""
        return self._cached_or_made(self.key, compile_now)

    def found(self) -> Compiled | None:
        """The compiled graph, if it is there."""
        return self._read(self.key)

    def made(self, compile_now: Callable[[], Compiled]) -> Compiled:
        """The compiled graph, made and cached."""
        if self.is_open:
            self.own_name = os.urandom(16).hex()
        return self._made(self.key, compile_now)

    def backward(
        self, which: tuple[Any, ...], compile_now: Callable[[], Compiled]
    ) -> Compiled:
        """The same for a backward, under the modes in which it is first called."""
        try:
            parts = {"forward": f"{self.key.digest} {self.own_name}".rstrip(),
                     "which": repr(which), **changing_parts()}  # fmt: skip
        except Uncacheable:
            return compile_now()
        with logs.compiling(replace(self.what, part="backward")):
            return self._cached_or_made(make_key("backward", parts), compile_now)

    def _cached_or_made(self, key: Key, compile_now: Callable[[], Compiled]) -> Compiled:
        ranks = self.ranks
        if ranks is None:
            return self._read(key) or self._made(key, compile_now)
        name = f"{key.kind}/{key.digest}"
        if ranks.compiles:
            return ranks.give(
                name, self.store, lambda: self._read(key) or self._made(key, compile_now))
        if ranks.take(name) or self.is_cached():
            cached = self._read(key)
            if cached is not None:
                return cached
        return self._made(key, compile_now)

    def _made(self, key: Key, compile_now: Callable[[], Compiled]) -> Compiled:
        with watched() as seen:
            made = compile_now()
        with timed("inductor.keep"):
            self._record(key).write(lambda: write_record(
                (made, seen.fallbacks, self.own_name), self.given, seen, self.store))
        return made

    def _record(self, key: Key) -> Record:
        return Record(CACHE, self.store, key, SUFFIX)

    def _read(self, key: Key) -> Compiled | None:
        if not self.may_read():
            return None
        record = self._record(key)
        with timed("inductor.kept"):
            cached = record.read(lambda content: read_record(content, self.given, self.store))
        if cached is None:
            return None
        made, fallbacks, self.own_name = cached
        record.report_hit()
        metrics.count("graphs_reused")
        report_fallbacks(fallbacks)
        if are_many():  # its collectives may be joined
            tie(self.given["site"])
        return made  # type: ignore[no-any-return]


def report_fallbacks(fallbacks: Sequence[tuple[str, str]]) -> None:
    """Tells which operators a graph leaves to ATen, and why."""
    left_to_aten(fallbacks)
    for operator, reason in fallbacks:
        metrics.count_fallback(operator)
        logs.log("inductor").emit(f"{operator} falls back to ATen: {reason}")


# -- writing ---------------------------------------------------------------------------------------


def write_record(value: Any, given: Mapping[str, Any], seen: Watched, store: Store) -> bytes:
    """The bytes of a value. Errors: Uncacheable; those of pickle."""
    out = io.BytesIO()
    try:
        _Writer(out, given, seen, store).dump(value)
    except Unsupported as why:
        raise Uncacheable(why.reason) from None
    return out.getvalue()


class _Writer(pickle.Pickler):
    def __init__(
        self, out: io.BytesIO, given: Mapping[str, Any], seen: Watched, store: Store
    ) -> None:
        super().__init__(out, protocol=5)
        self.names = {id(value): name for name, value in given.items()}
        self.copies = given.get("copies", ())
        self.names.update((id(copy), "gm") for copy in self.copies)
        self.args = given, seen, store
        self.memories = {value.untyped_storage()._cdata for value in given.values()
                         if isinstance(value, torch.Tensor)}  # fmt: skip

    def persistent_id(self, value: Any) -> Any:
        given, seen, store = self.args
        name = self.names.get(id(value))
        if name is not None:
            return name
        if isinstance(value, types.MethodType):
            owner = value.__self__
            same = owner is given["gm"] or any(owner is copy for copy in self.copies)
            if same and value.__name__ == "forward":
                return "captured"
            if value == given["keeping"]:
                return "keeping"
        if type(value) is OwnGemm:
            return ("gemm", value.dtype)
        if type(value) is Convolver:
            return ("convolver",)
        if type(value) is _launch.Launcher:
            launch = seen.launch_of(value, store)
            if launch is None:
                raise Uncacheable("it has a launcher of another compile")
            spec = with_numbers(launch.spec, given["traces"])
            return ("launch", launch.name, launch.digest, launch.calls, spec)
        if type(value) is Variant:
            module = module_of(value)
            if module is not None:
                return ("module", module, value.sizes, value.sources, value.tensors)
            launch = seen.launch_of(value, store)
            if launch is None:
                raise Uncacheable("it has kernels that are measured, or of another compile")
            return ("variant", launch.name, launch.digest, launch.calls,
                    with_numbers(launch.spec, given["traces"]), value.sizes, value.sources,
                    value.tensors)  # fmt: skip
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            recipe = recipe_of(value)
            if recipe is not None:
                return recipe.make, recipe.given
            _check_name(value)
            return NotImplemented
        refusal = getattr(type(value), "not_cacheable", None)
        if refusal is not None:
            raise Uncacheable(refusal)
        reduce = REDUCERS.get(type(value))
        if reduce is not None:
            return reduce(self, value)
        if isinstance(value, torch.Tensor | fx.GraphModule | fx.Node):
            raise Uncacheable(f"it holds a {type(value).__name__}")
        return NotImplemented

    def nested(self, value: Any) -> bytes:
        """A value for itself, which is read when it is wanted."""
        out = io.BytesIO()
        _Writer(out, *self.args).dump(value)
        return out.getvalue()


def _check_name(value: Any) -> None:
    if hasattr(value, "not_cacheable"):
        raise Uncacheable(value.not_cacheable)
    module = getattr(value, "__module__", None) or "torch"
    if module.partition(".")[0] not in TRUSTED | {"functools", "types", "collections", "copyreg"}:
        raise Uncacheable(f"it refers to {module}.{value.__qualname__}")
    if "<" in value.__qualname__:
        raise Uncacheable(f"it holds a function made by {value.__qualname__.partition('.<')[0]}")


def _reduce_tensor(writer: _Writer, value: torch.Tensor) -> Any:
    content = content_of(value)
    if value.requires_grad or not value.is_contiguous():
        raise Uncacheable(f"it holds a tensor ({value.dtype}, {value.device})")
    if value.untyped_storage()._cdata in writer.memories:  # a copy would see no write into it
        raise Uncacheable("it holds a view of a constant")
    return _tensor_of, (content, value.dtype, tuple(value.shape), value.device)


def _tensor_of(
    content: bytes, dtype: torch.dtype, size: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    with torch.inference_mode(False):
        if not content:
            return torch.empty(size, dtype=dtype, device=device)
        made = torch.frombuffer(bytearray(content), dtype=dtype).reshape(size)
        return made.clone() if device.type == "cpu" else made.to(device)


def _reduce_operator(writer: _Writer, value: Any) -> Any:
    return function_of, (str(value),)


def _reduce_graph(writer: _Writer, value: CachedGraph) -> Any:
    return _cached_graph, (writer.nested(value.rows()),)


def _cached_graph(content: bytes) -> CachedGraph:
    def rows() -> Rows:
        return _Reader(content, {}, None).load()  # type: ignore[no-any-return]

    return CachedGraph(None, rows)


def _reduce_frozen(writer: _Writer, value: FrozenCall) -> Any:
    given = (value.compiled, value.prepared, value.count, value.unused, value.instead)
    return FrozenCall, given


def _reduce_gpu_module(writer: _Writer, value: GpuModule) -> Any:
    traces = writer.args[0]["traces"]
    steps = with_numbers({"steps": value.steps}, traces)["steps"]
    return _gpu_module, (value.text, value.device, value.constants, value.binaries, value.graphing,
                         steps, dict(value.functions), traces)  # fmt: skip


def _gpu_module(*parts: Any) -> GpuModule:
    *rest, steps, functions, traces = parts
    rows = [(*row[:LINES], lines_of_step({"traces": traces}, row), *row[LINES + 1:])
            for row in steps]  # fmt: skip
    return GpuModule(*(*rest, rows, functions))


def _reduce_graphing(writer: _Writer, value: Graphing) -> Any:
    return Graphing, (value.recorder, value.values, value.written, value.repeatable)


def _reduce_mapping(writer: _Writer, value: Any) -> Any:
    return dict, (dict(value),)


def _reduce_named(writer: _Writer, value: Any) -> Any:
    """Pickle looks for the first module that has it, which may be one of the program."""
    return _named, (str(value).removeprefix("torch."),)


def _named(name: str) -> Any:
    return getattr(torch, name)


REDUCERS: Mapping[type, Callable[[_Writer, Any], Any]] = {
    torch.Tensor: _reduce_tensor,
    torch._ops.OpOverload: _reduce_operator,
    CachedGraph: _reduce_graph,
    FrozenCall: _reduce_frozen,
    GpuModule: _reduce_gpu_module,
    Graphing: _reduce_graphing,
    types.MappingProxyType: _reduce_mapping,
    torch.dtype: _reduce_named,
    torch.layout: _reduce_named,
    torch.memory_format: _reduce_named,
}


# -- reading ---------------------------------------------------------------------------------------


def read_record(content: bytes, given: Mapping[str, Any], store: Store) -> Any:
    """Errors: Stale, and what reading other bytes raises."""
    return _Reader(content, given, store).load()


class _Reader(Reader):
    def __init__(self, content: bytes, given: Mapping[str, Any], store: Store | None) -> None:
        super().__init__(content)
        self.given, self.store = given, store

    def persistent_load(self, name: Any) -> Any:
        if isinstance(name, tuple):
            assert self.store is not None
            if name[0] == "gemm":
                return own_gemm_of(name[1], self.store)
            if name[0] == "convolver":
                return convolver_of(self.store)
            if name[0] == "variant":
                return self._variant(*name[1:])
            if name[0] == "module":
                return loaded_variant(*name[1:])
            _, file, digest, calls, spec = name
            return loaded_launch(
                file, digest, calls, spec, self.store, self.given["traces"])
        if name == "captured":
            return self.given["gm"].forward
        return self.given[name]

    def _variant(
        self, file: str, digest: str, calls: Sequence[str], spec: dict[str, Any], sizes: Any,
        sources: Any, tensors: tuple[int, ...],
    ) -> Variant:
        assert self.store is not None
        path = library_of(file, digest, calls, self.store)
        return variant_of(path, spec, sizes, sources, tensors, self.given["traces"])

    def allows(self, package: str, name: str) -> bool:
        allowed = package in TRUSTED | {"functools", "copyreg", "collections"}
        return allowed and (package != "builtins" or name in BUILTINS | {"dict"})
