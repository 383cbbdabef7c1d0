"""`dynamo.package(model, args, folder)`: a model as a library that runs without Python.

    dynamo.package(model, (x,), "folder")
    fast = dynamo.load_package("folder")        # in Python, by `packaged.py`
    auto model = dynamo_package::Model::load("folder");     // in C++, by `folder/model.h`

The function is captured as one graph at these arguments, without gradients. Weights are in the
package as they were. `inductor/package/` makes code of the graph; here it is said where its inputs
come from and how the result is put together.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.api import run
from dynamo.backends.services import service
from dynamo.base.errors import Unsupported
from dynamo.exporting.package_files import ENDING, check_place, zip_folder
from dynamo.exporting.whole_graph import PLAIN, Places, Whole, name_of, tensors_of, trace_whole

ARGUMENT, WEIGHT, GRAPH, VALUE = "argument", "weight", "graph", "plain"


def package(
    f: Any, args: Sequence[Any], path: str | Path, kwargs: Mapping[str, Any] | None = None, *,
    more: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
    options: Mapping[str, Any] | None = None, processor: str | None = None,
    threads: int | None = None, target: str | None = None,
) -> Path:
    """Compiles `f(*args, **kwargs)`, a module or function, into a folder that C++ programs and
    `dynamo.load_package` run without tracing, Python or libtorch. Returns the folder. A path that
    ends with ".zip" makes one file of it, for `load_package`.

    Sizes, dtypes and strides of tensors, and all other arguments, are then fixed. No gradients.
    more: further pairs of arguments and keyword arguments, with tensors of other sizes: the package
    has code for each, and the weights once. options: of the compiler, see
    `inductor.list_options()`. processor: a kind for the compiler (`-march`), as "x86-64-v3"; by
    default this machine's, with all of its instructions. threads: of the kernels; by default
    torch's. target: "cpu", or a kind of GPU as "sm_90", wherever the tensors are; by default the
    GPU of the tensors, or the CPU.
    Errors: Unsupported where it is not one graph, or needs what a package can't have, with the
    line; ValueError for a target or processor; FileExistsError where `path` is something else than
    a package.

        >>> folder = package(model, (torch.ones(2, 8),), "folder")
    """
    folder = Path(path)
    if folder.suffix == ENDING:
        check_place(folder)
        with tempfile.TemporaryDirectory(prefix="dynamo_package_") as name:
            inner = Path(name) / folder.stem
            package(f, args, inner, kwargs, more=more, options=options, processor=processor,
                    threads=threads, target=target)
            zip_folder(inner, folder)
        return folder
    before = torch.get_num_threads()
    f = run(f)
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, and a package is a folder, or a file {ENDING}")
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.no_grad():
            calls = [(args, kwargs or {}), *more]
            sets = [(tuple(given), dict(named)) for given, named in calls]
            _package(f, sets, folder, options, processor, _capability(f, sets[0], target))
    except Unsupported as why:
        if isinstance(f, torch.nn.Module) and f.training:
            text = f"{why}\n  What to do: the module is in training mode; call its eval() first."
            raise Unsupported(text) from None
        raise
    finally:
        torch.set_num_threads(before)
    return folder


def _capability(f: Any, given: Any, target: str | None) -> int:
    """Of the GPU that a package is for, 90 for 9.0; 0 for a CPU. Errors: ValueError."""
    if target is None:
        tensors = [*pytree.tree_leaves(given), *(tensor for _, tensor in tensors_of(f))]
        on_gpu = [x.device for x in tensors
                  if isinstance(x, torch.Tensor) and x.device.type == "cuda"]
        if not on_gpu:
            return 0
        major, minor = torch.cuda.get_device_capability(on_gpu[0])
        return 10 * major + minor
    if target == "cpu":
        return 0
    match = re.fullmatch(r"sm_(\d+)a?", target)
    if match is None:
        raise ValueError(f'target={target!r}: it is "cpu", or a kind of GPU as "sm_90"')
    return int(match[1])


def _package(
    f: Any, sets: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], target: Path,
    options: Mapping[str, Any] | None, processor: str | None, capability: int,
) -> None:
    """sets: of arguments."""
    descriptions = []
    try:
        writer = service("package_writer").Writer(options, capability)
        for args, kwargs in sets:
            descriptions.append(_add(writer, f, args, kwargs))
            if descriptions[-1] != descriptions[0]:
                raise Unsupported("for other sizes its arguments or results have another "
                                  "structure, or other numbers")
        writer.write(target, _title(f), descriptions[0], processor)
    except _NotHere as why:
        raise Unsupported(str(why)) from None
    except Unsupported as why:
        raise Unsupported(f"{name_of(f)}\n  This can't be in a package: {why}.") from None


class _NotHere(Exception):
    """An error that tells its place."""


def _add(writer: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Compiles the function for one set of arguments; how these and the results nest."""
    arguments = _Arguments(f, args, kwargs)
    try:
        whole = trace_whole(f, args, kwargs)
    except Unsupported as why:
        raise _NotHere(str(why)) from None
    if len(whole.modules) != 1:
        raise Unsupported("it has no graph of tensor operations")
    places = _PackagePlaces(whole, arguments, tensors_of(f))
    inputs = [places.of_input(value) for value in whole.inputs]
    leaves, spec = pytree.tree_flatten(whole.result)
    results, rows = _results([places.of_leaf(leaf) for leaf in leaves])
    writer.add(whole.modules[0], whole.examples, inputs, results, arguments.tensors)
    return {
        "arguments": {"structure": _structure(arguments.spec), "leaves": arguments.rows()},
        "result": {"structure": _structure(spec), "leaves": rows},
    }


def _title(f: Any) -> str:
    return type(f).__name__ if isinstance(f, torch.nn.Module) else getattr(f, "__name__", repr(f))


class _Arguments:
    """The leaves of a call's arguments, each with a name; tensors among them are the inputs of the
    package, the others are fixed. Errors: Unsupported."""

    def __init__(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        paths, self.spec = pytree.tree_flatten_with_path((args, kwargs))
        self.flat = [value for _, value in paths]
        names = _parameters(f, len(args))
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.numbers: dict[int, int] = {}  # id of a tensor: which input it is
        for keys, value in paths:
            name = _name(keys, names)
            if not isinstance(value, torch.Tensor):
                _coded(value, f"the argument {name}")
            elif id(value) in self.numbers:
                other = self.tensors[self.numbers[id(value)]][0]
                raise Unsupported(f"{name} and {other} are one tensor, which a package can't "
                                  "check; give each its own")
            else:
                self.numbers[id(value)] = len(self.tensors)
                self.tensors.append((name, value))

    def rows(self) -> list[dict[str, Any]]:
        """What `model.json` has of each leaf."""
        return [{"input": self.numbers[id(value)]} if isinstance(value, torch.Tensor)
                else {"value": _coded(value, "an argument")} for value in self.flat]  # fmt: skip


def _parameters(f: Any, count: int) -> list[str]:
    """Names of the first `count` positional arguments."""
    call = f.forward if isinstance(f, torch.nn.Module) else f
    names: list[str] = []
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    for one in parameters:
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            names.append(one.name)
        elif one.kind is one.VAR_POSITIONAL:
            names += [f"{one.name}[{n}]" for n in range(max(0, count - len(names)))]
    return [*names, *(f"args[{n}]" for n in range(len(names), count))]


def _name(keys: Sequence[Any], names: Sequence[str]) -> str:
    which, first, *rest = keys
    head = names[first.idx] if which.idx == 0 else str(first.key)
    return head + pytree.keystr(tuple(rest))


class _PackagePlaces(Places):
    """Places are those of `inductor/package/cpu_graph.py: Place`."""

    def __init__(
        self, whole: Whole, arguments: _Arguments, owned: Sequence[tuple[str, torch.Tensor]]
    ) -> None:
        super().__init__("", owned)
        for number, (_, tensor) in enumerate(arguments.tensors):
            self.add(tensor, (ARGUMENT, number))
        for number, value in enumerate(whole.outputs):
            if isinstance(value, torch.Tensor):
                self.add(value, (GRAPH, number))

    def outside(self, value: Any, name: str) -> tuple[str, Any]:
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"its graph takes the number {value!r}")
        return WEIGHT, value.detach()

    def plain(self, value: Any) -> tuple[str, Any]:
        return VALUE, _coded(value, "a result")


def _results(
    places: Sequence[tuple[str, Any]]
) -> tuple[list[tuple[str, Any]], list[dict[str, Any]]]:
    """The tensors that the library gives, and what `model.json` has of each leaf: one object in two
    places is the first of them."""
    given: list[tuple[str, Any]] = []
    seen: dict[Any, int] = {}
    rows: list[dict[str, Any]] = []
    for kind, value in places:
        if kind == VALUE:
            rows.append({"value": value})
            continue
        key = (kind, id(value) if kind == WEIGHT else value)
        seen.setdefault(key, len(given))
        given.append((kind, value))
        row = {"output": seen[key]}
        rows.append({**row, "input": value} if kind == ARGUMENT else row)
    return given, rows


def _coded(value: Any, what: str) -> Any:
    """A plain value for JSON; what has no form there is ["kind", text]. Errors: Unsupported."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) in (float, complex):
        return [type(value).__name__, repr(value)]
    if type(value) in PLAIN:
        return [type(value).__name__, list(value) if isinstance(value, tuple) else str(value)]
    raise Unsupported(f"{what} is {value!r}: a package holds tensors and plain values")


def _structure(spec: pytree.TreeSpec) -> dict[str, Any]:
    """How leaves nest, as JSON, and the modules that register its classes."""
    modules: set[str] = set()

    def visit(node: pytree.TreeSpec) -> None:
        if node.type is not None and node.type.__module__ not in ("builtins", "collections"):
            modules.add(node.type.__module__)
        kind = node.context if isinstance(node.context, type) else None
        if kind is not None:
            modules.add(kind.__module__)
        for child in node.children():
            visit(child)

    visit(spec)
    try:
        text = pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        raise Unsupported(f"its structure has no text: {error}") from None
    return {"tree": json.loads(text), "modules": sorted(modules)}
