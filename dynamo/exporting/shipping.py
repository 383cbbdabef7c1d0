"""`compiled.aot_compile(*args)`: compiled code as a file, which `shipped.py` reads.

    program = dynamo.compile(model).aot_compile(x)      # under torch.no_grad()
    program.save("model.compiled")                      # weights=True: with the weights
    fast = dynamo.load_compiled("model.compiled", model)    # in another process: nothing is traced

The file holds the compiled graph with its libraries, the guards on arguments and module as checks,
and what must be alike where it runs: torch, Python, this package, the processor or GPU. What was
traced beside (code, globals, closures) is in it as it was. It holds native code: load only what you
trust.
"""

from __future__ import annotations

import inspect
import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.backends.services import service
from dynamo.base.errors import Unsupported
from dynamo.captures.fingerprints import find_by_name
from dynamo.exporting.shipped import FORMAT, MANIFEST, Program, description
from dynamo.exporting.whole_graph import PLAIN, Places, name_of, tensors_of, trace_whole
from dynamo.guards.build import GROUPS, PAIRS, other_sources
from dynamo.guards.records import Guard, source_text
from dynamo.guards.sources import LocalSource, Source
from dynamo.guards.weak import strongly
from dynamo.options import CompileOptions
from dynamo.store.content import replacing, sealed
from dynamo.symbolic.core.graph import storage_of

PACKAGES = ("torch", "builtins", "collections")
SINGLETONS = (None, True, False, ...)


class CompiledProgram:
    """What `aot_compile` gives: `save` writes it. It is not called itself: `load_compiled`."""

    def __init__(self, program: Program, shipment: Any, tensors: dict[str, torch.Tensor],
                 constants: list[torch.Tensor], facts: dict[str, str]) -> None:
        self.program, self.shipment, self.facts = program, shipment, facts
        self.tensors, self.constants = tensors, constants

    def save(self, path: str | Path, *, weights: bool = False) -> None:
        """Writes one file. weights: with the parameters and buffers that the graph reads; else
        `load_compiled` takes those of the module that it is given. Errors: OSError."""
        members = {
            MANIFEST: json.dumps({"format": FORMAT, "facts": self.facts}).encode(),
            "program": pickle.dumps(self.program, protocol=5), "record": self.shipment.record,
            "graph": self.shipment.graph, "constants": _saved(self.constants),
            "files": self.shipment.files, "binaries": self.shipment.binaries,
        }  # fmt: skip
        if weights:
            members["weights"] = _saved({n: t.detach() for n, t in self.tensors.items()})
        with replacing(Path(path)) as made:
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in members.items():
                    archive.writestr(name, sealed(content))
            made.chmod(0o644)


def _saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def aot_compile(
    f: Any, settings: CompileOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CompiledProgram:
    """Compiles `f(*args, **kwargs)` for a file. Errors: Unsupported, with what can't be in one."""
    inductor = service("shipment_writer")
    if settings.backend_name != "inductor":
        raise Unsupported(f"aot_compile is for the backend 'inductor', not {settings.backend_name}")
    if not isinstance(f, torch.nn.Module | FunctionType):
        kind = "a bound method" if inspect.ismethod(f) else f"a {type(f).__name__}"
        raise Unsupported(f"aot_compile takes a module or a function, not {kind}")
    whole = trace_whole(f, args, kwargs)
    flat, in_spec = pytree.tree_flatten((args, kwargs))
    places = _FilePlaces(f, flat)
    values = tuple([(number, value) for number, value in enumerate(flat)
                    if not isinstance(value, torch.Tensor)])  # fmt: skip
    for _, value in values:
        if value is not None and type(value) not in PLAIN:
            raise Unsupported(f"{name_of(f)}: an argument is {value!r}: a file holds plain values "
                              "and tensors")
    if len(whole.modules) != 1:
        raise Unsupported(f"{name_of(f)}: it has no graph of tensor operations")
    inputs = tuple([places.of_input(value) for value in whole.inputs])
    _check_writes(f, whole.modules[0], inputs)
    for number, value in enumerate(whole.outputs):
        places.add(value, ("graph", number))
    leaves, out_spec = pytree.tree_flatten(whole.result)
    try:
        outputs = tuple([places.of_leaf(leaf) for leaf in leaves])
        shipment = inductor.ship(
            whole.modules[0], whole.examples, settings.mode, dict(settings.options) or None)
    except Unsupported as why:
        raise Unsupported(f"{name_of(f)}\n  This can't be put into a file: {why}.") from None
    module = f if isinstance(f, torch.nn.Module) else None
    program = Program(
        name_of(f), inspect.Signature() if module is not None else _signature(f),
        None if module is None else description(module),
        _checks(whole.guards), values, inputs, outputs,
        _numbered(in_spec), _numbered(out_spec),
        settings.mode, dict(settings.options))
    try:
        pickle.dumps(program)
    except Exception as error:
        raise Unsupported(f"{name_of(f)}\n  This can't be put into a file: {error}.") from None
    read = {name for kind, name in (*inputs, *outputs) if kind == "owned"}
    tensors = {name: tensor for name, tensor in tensors_of(f) if name in read}
    facts = service("shipment_reader").facts_now(shipment.devices)
    if shipment.devices:
        del facts["processor"]  # nothing is compiled for it
    return CompiledProgram(program, shipment, tensors, places.constants, facts)


def _numbered(spec: pytree.TreeSpec) -> Any:
    return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)


class _FilePlaces(Places):
    """Places are those of `Program`. constants: tensors that the file holds."""

    def __init__(self, f: Any, flat: list[Any]) -> None:
        super().__init__("", tensors_of(f))
        self.constants: list[torch.Tensor] = []
        for number, value in enumerate(flat):
            self.add(value, ("argument", number))

    def outside(self, value: Any, name: str) -> tuple[str, Any]:
        if name:
            return "owned", name
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"its graph takes the number {value!r}")
        self.constants.append(value.detach())
        return "constant", len(self.constants) - 1

    def plain(self, value: Any) -> tuple[str, Any]:
        return "plain", super().plain(value)


def _check_writes(f: Any, module: torch.fx.GraphModule, inputs: Sequence[tuple[str, Any]]) -> None:
    """Errors: Unsupported where a tensor is written that lies in the file alone."""
    written = {storage_of(fake) for node in module.graph.nodes
               for fake in node.meta.get("changed", ())}  # fmt: skip
    shown = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
    for (kind, _), value in zip(inputs, shown, strict=True):
        if kind == "constant" and storage_of(value) in written:
            raise Unsupported(f"{name_of(f)}: it writes into a tensor that is no argument")


def _signature(f: Any) -> inspect.Signature:
    """Its parameters, and those of their defaults that a file holds."""
    parameters = []
    for each in inspect.signature(f).parameters.values():
        plain = each.default is None or type(each.default) in PLAIN
        parameters.append(inspect.Parameter(
            each.name, each.kind, default=each.default if plain else each.empty))
    return inspect.Signature(parameters)


def _checks(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """The guards that are checks of the file: those on arguments, on the module, and on torch's
    state. Code, classes and globals of the program are in the file as they were."""
    return tuple([_held(guard) for guard in map(_of_arguments, guards) if guard is not None])


def _of_arguments(guard: Guard) -> Guard | None:
    """What of a guard is about arguments and the module, None where that is nothing."""
    if guard.kind == "GLOBAL_STATE":
        return guard
    if guard.source is None and guard.kind in GROUPS:
        some = tuple([source for source in guard.payload if _is_local(source)])
        return Guard(guard.kind, None, some, guard.line) if len(some) > 1 else None
    others = guard.kind in PAIRS or guard.kind == "SHAPE"
    if others and not all(map(_is_local, other_sources(guard))):
        return None
    if guard.source is not None and not _is_local(guard.source):
        return None
    payload = strongly(guard.payload)
    if payload is None and guard.payload is not None:
        return None  # about the class of the compiled module, which is gone
    if guard.kind in ("TYPE", "SUBCLASS"):  # classes of the program are checked by `description`
        return guard if _has_name(payload) else None
    if guard.kind == "ID":
        return guard if any(payload is single for single in SINGLETONS) else None
    return None if guard.kind == "CODE" else guard


def _has_name(cls: type) -> bool:
    """True for a class that every process finds by its name: not that of a compiled module."""
    named = find_by_name(cls.__module__, cls.__qualname__) is cls
    return named and cls.__module__.partition(".")[0] in PACKAGES


def _is_local(source: Source) -> bool:
    return isinstance(source.root(), LocalSource)


def _held(guard: Guard) -> Guard:
    """The guard with what it is about, which an entry refers to weakly."""
    payload = guard.payload
    payload = tuple(map(strongly, payload)) if guard.kind == "DICT_KEYS" else strongly(payload)
    line = guard.line if guard.line is None else replace(guard.line, text=source_text(guard.line))
    return Guard(guard.kind, guard.source, payload, line)
