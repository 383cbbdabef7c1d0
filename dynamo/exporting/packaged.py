"""`load_package(folder)`: a package (`packaging.py`) as a function of torch tensors.

In: the folder. Out: a callable with the arguments and results that the packaged function had. It
calls the library by ctypes; nothing is traced or compiled, and no other part of this package runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from dynamo.base.dtype_numbers import NUMBERS
from dynamo.base.errors import GuardFailed, LoadError
from dynamo.exporting.package_files import unzipped

FORMAT = 1
ROOM = 2000  # bytes of the text of an error
BAD_INDEX, OTHER_INPUTS = 2, 3  # what `dynamo_package_run` returns
DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


class _Tensor(ctypes.Structure):
    """`DynamoTensor` of `inductor/package/cpp/interface.h`."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("dims", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("owner", ctypes.c_void_p),
    ]  # fmt: skip


def load_package(path: str | Path) -> LoadedPackage:
    """What `dynamo.package` has written, as a function: a folder, or the zip of one, which is
    unpacked for the time of loading. It holds native code that will run: load only what you trust.

    Errors: LoadError where the path is not a whole package for this machine; a call: GuardFailed
    where arguments are others than it was made for, and RuntimeError or IndexError as in eager.
    """
    if not Path(path).is_file():
        return LoadedPackage(Path(path))
    with unzipped(Path(path)) as folder:
        try:
            loaded = LoadedPackage(folder)
        except LoadError as error:
            raise LoadError(str(error).replace(str(folder), str(path))) from None
    loaded.folder = Path(path)
    return loaded


class LoadedPackage:
    """A packaged function. Call it as that; several threads may, at once.

    description: what `model.json` says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.description, checksum = _read(folder)
        self._arguments = _tree(self.description["arguments"]["structure"], folder)
        self._result = _tree(self.description["result"]["structure"], folder)
        self._library = _library(folder, checksum)
        error = ctypes.create_string_buffer(ROOM)
        self._model = self._library.dynamo_package_open(str(folder).encode(), error, ROOM)
        if not self._model:
            raise LoadError(f"{error.value.decode()}.")
        weakref.finalize(self, self._library.dynamo_package_close, self._model)
        self._device: torch.device | None = None  # that results lie on, where inputs do
        if self.description.get("target", "cpu") != "cpu":
            self._device = torch.device("cuda", self._library.dynamo_package_device(self._model))

    def __repr__(self) -> str:
        return f"<LoadedPackage {self.description['name']} of {self.folder}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._arguments:
            self._refuse(f"the arguments have another structure: {spec}, not {self._arguments}")
        rows = self.description["arguments"]["leaves"]
        inputs = []
        for leaf, row in zip(flat, rows, strict=True):
            if "input" in row:
                inputs.append(self._checked(leaf, row["input"]))
            elif not _same(leaf, _decoded(row["value"])):
                self._refuse(f"an argument was {_decoded(row['value'])!r}, now it is {leaf!r}")
        results = self.run(inputs)
        leaves = []
        for row in self.description["result"]["leaves"]:
            if "value" in row:
                leaves.append(_decoded(row["value"]))
            else:
                leaves.append(inputs[row["input"]] if "input" in row else results[row["output"]])
        return pytree.tree_unflatten(leaves, self._result)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of the result, of the tensors among the arguments, both in order."""
        given = (_Tensor * max(1, len(inputs)))()
        alive = [_fill(given[number], tensor) for number, tensor in enumerate(inputs)]
        got = (_Tensor * max(1, len(self.description["outputs"])))()
        error = ctypes.create_string_buffer(ROOM)
        call = [self._model, given, len(inputs), got, error, ROOM]
        on_gpu = self._device is not None and any(x.device.type == "cuda" for x in inputs)
        if on_gpu:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            failed = self._library.dynamo_package_run_on(*call[:4], stream, *call[4:])
        else:
            failed = self._library.dynamo_package_run(*call)
        del alive
        if failed:
            text = error.value.decode()
            if failed == OTHER_INPUTS:
                self._refuse(text)
            raise (IndexError if failed == BAD_INDEX else RuntimeError)(text)
        return [self._wrapped(got[number], on_gpu)
                for number in range(len(self.description["outputs"]))]  # fmt: skip

    def _checked(self, leaf: Any, number: int) -> torch.Tensor:
        name = self.description["inputs"][number]["name"]
        if not isinstance(leaf, torch.Tensor):
            self._refuse(f"{name} is no tensor, but {leaf!r}")
        if leaf.device.type != "cpu" and leaf.device != self._device:
            where = "a CPU" if self._device is None else f"a CPU or {self._device}"
            self._refuse(f"{name} is on {leaf.device}, not on {where}")
        if leaf.layout is not torch.strided:
            self._refuse(f"{name} is no plain tensor ({leaf.layout})")
        if leaf.dtype not in NUMBERS:
            self._refuse(f"{name} is of {leaf.dtype}")
        if leaf.is_conj() or leaf.is_neg() or leaf._is_zerotensor():
            return leaf.resolve_conj().resolve_neg().clone()
        return leaf

    def _wrapped(self, tensor: _Tensor, on_gpu: bool) -> torch.Tensor:
        """A torch tensor over the memory of a result, which is freed when its storage dies. Of that
        on the GPU its streams are known on the current one."""
        dtype = DTYPES[tensor.dtype]
        sizes, strides = tensor.sizes[: tensor.dims], tensor.strides[: tensor.dims]
        pairs = zip(sizes, strides, strict=True)
        span = 0 if 0 in sizes else 1 + sum((size - 1) * step for size, step in pairs)
        memory: Any = _GpuMemory(tensor.data or 0, span * dtype.itemsize) if on_gpu else (
            ctypes.c_char * (span * dtype.itemsize)).from_address(tensor.data or 0)
        memory.__dict__["model"] = self  # weights may be results
        if tensor.owner:
            weakref.finalize(memory, self._library.dynamo_package_release, tensor.owner)
        if span == 0:
            device = self._device if on_gpu else None
            return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        if on_gpu:
            flat = torch.as_tensor(memory, device=self._device).view(dtype)
        else:
            flat = torch.frombuffer(memory, dtype=dtype)
        return flat.as_strided(sizes, strides)

    def _refuse(self, text: str) -> NoReturn:
        raise GuardFailed(f"{self.description['name']}: {text}.\n  What to do: call it as it was "
                          "packaged, or package it again for these arguments.")


class _GpuMemory:
    """Bytes on a GPU, for torch, which keeps this object as long as it uses them."""

    def __init__(self, begin: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (begin, False), "version": 2}


def _read(folder: Path) -> tuple[dict[str, Any], int]:
    """The description and the library's checksum, where both are what was written. Errors:
    LoadError."""
    checksums = {}
    try:
        lines = (folder / "package.sum").read_text().splitlines()
        for name, checksum, size, digest in (line.split() for line in lines):
            checksums[name] = int(checksum, 16)
            content = (folder / name).read_bytes()
            if len(content) != int(size) or hashlib.sha256(content).hexdigest() != digest:
                raise LoadError(f"{folder / name} is damaged: its contents are not what was "
                                "written.\n  What to do: package the model again.")
        described: dict[str, Any] = json.loads((folder / "model.json").read_text())
    except (OSError, ValueError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"{folder} is no whole package ({error}).") from None
    if described.get("format") != FORMAT:
        raise LoadError(f"{folder} is a package of format {described.get('format')}, this version "
                        f"reads {FORMAT}.\n  What to do: package the model again.")
    return described, checksums["libmodel.so"]


def _tree(structure: Mapping[str, Any], folder: Path) -> pytree.TreeSpec:
    """Errors: LoadError where a class of the structure is not known here."""
    try:
        for module in structure["modules"]:
            importlib.import_module(module)
        return pytree.treespec_loads(json.dumps(structure["tree"]))
    except (ImportError, NotImplementedError) as error:
        raise LoadError(f"{folder}: its arguments or results are of classes that are not here "
                        f"({error}).\n  What to do: install what defines them.") from None


def _library(folder: Path, checksum: int) -> Any:
    """The loaded library. A path that `dlopen` has seen stands for what was there then, whatever is
    there now: so the path tells the checksum, by its slashes."""
    slashes = "".join("//." if checksum >> bit & 1 else "/." for bit in range(32))
    try:
        library = ctypes.CDLL(f"{folder.resolve()}{slashes}/libmodel.so")
    except OSError as error:
        raise LoadError(f"{folder}/libmodel.so can't be loaded ({error}).") from None
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    tensors = ctypes.POINTER(_Tensor)
    library.dynamo_package_open.argtypes = [text, text, size]
    library.dynamo_package_open.restype = pointer
    library.dynamo_package_close.argtypes = [pointer]
    library.dynamo_package_close.restype = None
    library.dynamo_package_release.argtypes = [pointer]
    library.dynamo_package_release.restype = None
    library.dynamo_package_run.argtypes = [pointer, tensors, size, tensors, text, size]
    if hasattr(library, "dynamo_package_run_on"):  # for a GPU
        library.dynamo_package_run_on.argtypes = [
            pointer, tensors, size, tensors, pointer, text, size]
        library.dynamo_package_device.argtypes = [pointer]
    return library


def _fill(row: _Tensor, tensor: torch.Tensor) -> Any:
    """Describes a tensor; what is returned lives as long as that is read."""
    dims = tensor.dim()
    sizes = (ctypes.c_int64 * dims)(*tensor.shape)
    strides = (ctypes.c_int64 * dims)(*tensor.stride())
    row.data, row.dtype, row.dims = tensor.data_ptr(), NUMBERS[tensor.dtype], dims
    row.sizes = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    row.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    return sizes, strides


def _decoded(value: Any) -> Any:
    """A plain value of `model.json`; see `packaging.py: _coded`."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind in ("dtype", "memory_format", "layout"):
        return getattr(torch, content.removeprefix("torch."))
    if kind == "device":
        return torch.device(content)
    if kind == "Size":
        return torch.Size(content)
    return {"float": float, "complex": complex}[kind](content)


def _same(left: Any, right: Any) -> bool:
    """Whether two plain values are one: of one type, and NaN is NaN."""
    return type(left) is type(right) and (left == right or left != left and right != right)
