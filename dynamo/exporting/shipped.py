"""`load_compiled(path)`: a file that `aot_compile` has made, as a function.

In: the file, and the module whose weights it reads. Out: a callable in front of which the guards
are checked. Nothing is traced or compiled: what does that (`shipping.py`) is not even loaded.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import operator
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from dynamo.backends.services import service
from dynamo.base.errors import GuardFailed, LoadError
from dynamo.base.gpu_state import settle_choices
from dynamo.captures.fingerprints import digest_of_code
from dynamo.guards.build import GROUPS, build_program
from dynamo.guards.explain import failure
from dynamo.guards.kinds import const_equal, short
from dynamo.guards.records import Guard, UserLine
from dynamo.guards.sources import LocalSource, Scope, Source
from dynamo.store.content import Damaged, opened

FORMAT = "2"
MANIFEST = "manifest.json"
SELF = "self"
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Program:
    """What is pickled. name: of the function. signature: of a function, without annotations.

    module: (class, modules with classes and code) of a module, None for a function. values: leaves
    of the arguments that are no tensors. inputs: of the graph, ("argument", leaf), ("owned", name)
    or ("constant", number). outputs: the leaves of the result, ("graph", number), or one of those,
    or ("plain", value). given, result: the arguments and the result, with numbers for leaves.
    """

    name: str
    signature: inspect.Signature
    module: tuple[str, tuple[tuple[str, str], ...]] | None
    guards: tuple[Guard, ...]
    values: tuple[tuple[int, Any], ...]
    inputs: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[str, Any], ...]
    given: Any
    result: Any
    mode: str | None
    options: Mapping[str, Any]


def description(module: torch.nn.Module) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The classes of a module and of those inside, with a digest of the code of `forward`."""
    return type(module).__qualname__, tuple([
        (name, f"{type(part).__qualname__} {_digest_of_code(type(part).forward)}")
        for name, part in module.named_modules()])


def _digest_of_code(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else digest_of_code(_without_lines(code))


def _without_lines(code: CodeType) -> CodeType:
    """The code as it is on each machine: files and lines of it may differ."""
    constants = [_without_lines(one) if type(one) is CodeType else one for one in code.co_consts]
    return code.replace(
        co_consts=tuple(constants), co_filename="", co_firstlineno=1, co_linetable=b"")


def load_compiled(path: str | Path, module: torch.nn.Module | None = None) -> LoadedProgram:
    """What `save` has written, as a function; nothing is traced or compiled.

    module: whose parameters and buffers it reads, where the file holds none. The file holds native
    code that will run: load only what you trust. Errors: LoadError where the file is damaged, or
    was made for another torch, Python, processor, GPU or module; a call: GuardFailed.
    """
    members, facts = _read(Path(path))
    inductor = service("shipment_reader")
    devices = [name for name in facts if name.startswith("cuda")]
    now = inductor.facts_now(devices)
    for name, wanted in facts.items():
        if now.get(name) != wanted:
            raise LoadError(f"{path}: it was made for {name} {wanted}, here is {now.get(name)}.\n"
                            "  What to do: make it again here, with aot_compile.")
    if devices:
        torch.cuda.init()
        settle_choices()
    program: Program = pickle.loads(members["program"])
    shipment = inductor.Shipment(*[
        members[name] for name in ("record", "graph", "files", "binaries")])
    digest = hashlib.sha256(members["record"]).hexdigest()[:40]
    call = inductor.unship(shipment, digest, program.mode, dict(program.options) or None)
    constants = torch.load(io.BytesIO(members["constants"]), weights_only=True)
    weights = None
    if "weights" in members:
        weights = torch.load(io.BytesIO(members["weights"]), weights_only=True)
    return LoadedProgram(str(path), program, call, constants, weights, module)


def _read(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """The members of a file, which are as they were written, and what it was made for."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: opened(archive.read(name)) for name in archive.namelist()}
        manifest = json.loads(members[MANIFEST])
    except (zipfile.BadZipFile, zlib.error, Damaged, KeyError, ValueError, EOFError) as error:
        raise LoadError(f"{path}: it is no file of aot_compile, or damaged ({error}).") from None
    if manifest["format"] != FORMAT:
        raise LoadError(f"{path}: it has the format {manifest['format']}, not {FORMAT}.")
    return members, manifest["facts"]


class LoadedProgram:
    """A compiled function from a file. A call that a guard forbids is a GuardFailed."""

    def __init__(
        self, path: str, program: Program, call: Call, constants: list[torch.Tensor],
        weights: Mapping[str, torch.Tensor] | None, module: torch.nn.Module | None,
    ) -> None:
        self._path, self._program, self._call = path, program, call
        self._given, self._result = (
            pytree.tree_flatten(tree)[1] for tree in (program.given, program.result))
        self._module = module
        guards = program.guards
        if weights is not None and program.module is not None:
            guards = tuple([guard for guard in map(_of_arguments, guards) if guard is not None])
        elif program.module is not None:
            self._check_module(module)
        self._guards, self._checks = guards, build_program(guards)
        self._bind = _binder(program)
        self._inputs, self._outputs = (
            [self._place(*row, constants, weights) for row in rows]
            for rows in (program.inputs, program.outputs))

    def _check_module(self, module: torch.nn.Module | None) -> None:
        name, parts = self._program.module  # type: ignore[misc]
        if module is None:
            raise LoadError(f"{self._path}: it holds no weights.\n  What to do: give the module, "
                            "load_compiled(path, module), or save it with weights=True.")
        there = dict(description(module)[1])
        for part, wanted in parts:
            if there.get(part) != wanted:
                where = part or "it"
                raise LoadError(f"{self._path}: it was made for a {name} of which {where} had "
                                f"another class or other code of forward ({wanted}, now "
                                f"{there.get(part)}).")

    def _place(
        self, kind: str, value: Any, constants: list[torch.Tensor],
        weights: Mapping[str, torch.Tensor] | None,
    ) -> tuple[str, Any]:
        """An input or output, as a call needs it."""
        if kind == "constant":
            return "plain", constants[value]
        return kind, self._owned(value, weights) if kind == "owned" else value

    def _owned(self, name: str, weights: Mapping[str, torch.Tensor] | None) -> Call:
        """What reads a parameter or buffer now."""
        if weights is not None:
            tensor = weights[name]
            return lambda: tensor
        module = self._module
        if module is None:
            raise LoadError(f"{self._path}: it needs the module with {name}.")
        getter = operator.attrgetter(name)
        return lambda: getter(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        locals_ = self._bind(self._module, args, kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        holds = self._checks.run(locals_, {}, {}, {})[2]
        if not holds or spec != self._given or not self._same_values(flat):
            self._refuse(locals_, spec, flat)
        results = self._call(*[
            flat[value] if kind == "argument" else value() if kind == "owned" else value
            for kind, value in self._inputs])
        leaves = []
        for kind, value in self._outputs:
            if kind == "graph":
                leaves.append(results[value])
            elif kind == "argument":
                leaves.append(flat[value])
            else:
                leaves.append(value() if kind == "owned" else value)
        return pytree.tree_unflatten(leaves, self._result)

    def _same_values(self, flat: list[Any]) -> bool:
        """Whether arguments that are no tensors are what they were: results may hold them."""
        return all(const_equal(flat[number], value) for number, value in self._program.values)

    def _refuse(
        self, locals_: dict[str, Any], spec: pytree.TreeSpec, flat: list[Any]
    ) -> NoReturn:
        scope = Scope(locals_, {}, {}, {})
        for guard in self._guards:
            text, _ = failure(guard, scope)
            if text is not None:
                self._fail(text, guard.line)
        if spec != self._given:
            self._fail(f"the arguments have another structure: {spec}, not {self._given}")
        paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(flat, spec))
        for number, value in self._program.values:
            if not const_equal(flat[number], value):
                name = pytree.keystr(paths[number][0])
                which = "args" if name.startswith("[0]") else "kwargs"
                name = which + name[len("[0]"):]
                self._fail(f"{name} was {short(value)}, now it is {short(flat[number])}")
        raise AssertionError("a guard fails that holds")

    def _fail(self, text: str, line: UserLine | None = None) -> NoReturn:
        needed = ""
        if line is not None:
            needed = f"\n  Needed at {line}" + (f": {line.text}" if line.text else "")
        raise GuardFailed(f"{self._program.name}: {text}.{needed}\n  What to do: call it as it was "
                          "made, or make it again with aot_compile.")


def _of_arguments(guard: Guard) -> Guard | None:
    """What of a guard is not about the module, None where that is nothing."""
    if guard.kind in GROUPS and guard.source is None:
        some = tuple([source for source in guard.payload if not _is_of_module(source)])
        return Guard(guard.kind, None, some, guard.line) if len(some) > 1 else None
    sources = (guard.source, guard.payload)
    return None if any(map(_is_of_module, sources)) else guard


def _is_of_module(source: Any) -> bool:
    return isinstance(source, Source) and source.root() == LocalSource(SELF)


def _binder(program: Program) -> Call:
    """Gives the arguments names, as the traced frame had them."""
    if program.module is not None:
        return lambda module, args, kwargs: {SELF: module, "args": args, "kwargs": kwargs}

    def bind(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = program.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise GuardFailed(f"{program.name}: {error}.") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    return bind
