"""The folder of a package: library, weights, header, description.

In: the code for each set of sizes, weights, what the description tells beside. Out: files.

    libmodel.so     kernels, tables, runtime: nothing but OpenMP and the C library is needed, and
                    for a GPU the driver
    weights.bin     a line about itself, and from byte 4096 on the weights as kernels read them
    model.h         for programs in C++
    model.json      inputs, outputs and their structure: for people and for the loader in Python
    package.sum     of libmodel.so and model.json: name, checksum, bytes, SHA-256
    README.md, CMakeLists.txt
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamo.store.content import cache_store
from inductor.driver import cpu
from inductor.package.cpu_graph import Code, Seen, bytes_of
from inductor.package.gpu_graph import GpuCode
from inductor.package.gpu_kernels import compile_functions
from inductor.package.link import (
    check_vectors,
    copy_header,
    for_processor,
    gpu_objects,
    link_library,
    needed_instructions,
    objects_of,
)
from inductor.package.tables import (
    ALIGNMENT,
    Variant,
    print_launches,
    print_tables,
    weight_places,
)

LIBRARY, WEIGHTS, DESCRIPTION, SUMS = "libmodel.so", "weights.bin", "model.json", "package.sum"
HEADER = 4096  # bytes: a page, so that weights behind it are mapped at their own
MAGIC = "dynamo package weights 1\n"

CMAKE = """\
# add_subdirectory(this folder), target_link_libraries(your_program dynamo_package)
cmake_minimum_required(VERSION 3.10)
project(dynamo_package CXX)
add_library(dynamo_package INTERFACE)
target_include_directories(dynamo_package INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(dynamo_package INTERFACE ${CMAKE_DL_LIBS})
target_compile_features(dynamo_package INTERFACE cxx_std_17)
"""

README = """\
# {name}

In C++ (`g++ -std=c++17 -O2 main.cpp -I {folder} -ldl -o main`):

    #include "model.h"

    auto model = dynamo_package::Model::load("{folder}");
    std::vector<dynamo_package::Tensor> results = model.run({{{inputs}}});

In Python: `dynamo.load_package("{folder}")`.

| input | type | sizes | strides |
| --- | --- | --- | --- |
{input_rows}

| result | type | sizes | strides |
| --- | --- | --- | --- |
{output_rows}

{where}
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A package. description: more keys of `model.json`. capability: of the GPU, 0 for a CPU."""

    name: str
    variants: Sequence[Variant]
    weights: Sequence[torch.Tensor]
    description: Mapping[str, Any]
    processor: str | None = None
    capability: int = 0


def write_folder(target: Path, package: Package) -> None:
    """Puts a package there, in the place of an older one. Errors: OSError, NoCompiler, BuildError,
    NoType; ValueError for a processor."""
    if target.exists() and not (target / DESCRIPTION).is_file() and any(target.iterdir()):
        raise FileExistsError(f"{target} is there already, and is no package")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _fill(folder, target.name, package)
        folder.chmod(0o755)
        old = folder.with_name(folder.name + ".old")
        if target.exists():
            target.rename(old)
        folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill(folder: Path, title: str, package: Package) -> None:
    built = _built_for_gpu(package) if package.capability else _built(package)
    library = built.library
    (folder / LIBRARY).write_bytes(library)
    (folder / LIBRARY).chmod(0o755)
    checksum = ctypes.CDLL(str(folder / LIBRARY)).dynamo_package_checksum
    checksum.argtypes, checksum.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    _write_weights(folder / WEIGHTS, package.weights, built.identity, checksum)
    described = _describe(package, built)
    text = json.dumps(described, indent=1).encode()
    (folder / DESCRIPTION).write_bytes(text)
    lines = [f"{name} {checksum(content, len(content)):016x} {len(content)} "
             f"{hashlib.sha256(content).hexdigest()}\n"
             for name, content in ((LIBRARY, library), (DESCRIPTION, text))]  # fmt: skip
    (folder / SUMS).write_text("".join(lines))
    copy_header(folder)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "README.md").write_text(_readme(title, described))


@dataclass(frozen=True, slots=True)
class _Built:
    """target: "cpu" or "sm_90". processor: flags of /proc/cpuinfo that the library needs."""

    library: bytes
    identity: str
    compiler: str
    target: str
    processor: str = ""


def _built(package: Package) -> _Built:
    store = cache_store()
    here = cpu.need_toolchain(store)
    toolchain = for_processor(here, package.processor)
    check_vectors(toolchain, here)
    instructions = needed_instructions(toolchain)
    units = [variant.code.units for variant in package.variants if isinstance(variant.code, Code)]
    tables = print_tables(
        package.name, package.variants, package.weights, platform.machine(), instructions)
    identity = _identity(package, repr((tables, units)).encode())
    tables = f'#define PACKAGE_ID "{identity}"\n{tables}'
    objects = objects_of(units, tables, toolchain)
    library = link_library(objects, toolchain, store, _cores())
    return _Built(library, identity, toolchain.version, "cpu", instructions)


def _built_for_gpu(package: Package) -> _Built:
    store = cache_store()
    toolchain = cpu.need_toolchain(store)
    codes = [variant.code for variant in package.variants if isinstance(variant.code, GpuCode)]
    functions = list(dict.fromkeys(one for code in codes for one, _, _ in code.launches))
    binaries = compile_functions(functions, package.capability, _cores())
    launches, cubins = print_launches(codes, binaries, package.capability)
    tables = print_tables(package.name, package.variants, package.weights, platform.machine(), "")
    identity = _identity(package, repr((tables, launches)).encode() + cubins)
    tables = f'#define PACKAGE_ID "{identity}"\n{tables}'
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "kernels.bin").write_bytes(cubins)
        objects = gpu_objects(tables, launches, Path(name))
        library = link_library(objects, toolchain, store, _cores())
    return _Built(library, identity, toolchain.version, f"sm_{package.capability}")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _identity(package: Package, content: bytes) -> str:
    known = hashlib.sha256(content)
    for part in _contents(package.weights):
        known.update(part)
    return known.hexdigest()[:32]


def _contents(weights: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of the weights, each from its first element to its last, up to a whole line."""
    for weight in weights:
        content = bytes_of(weight)
        yield content
        yield memoryview(bytes(-len(content) % ALIGNMENT))


def _write_weights(
    path: Path, weights: Sequence[torch.Tensor], identity: str, checksum: Any
) -> None:
    _, size = weight_places(weights)
    with path.open("w+b") as file:
        file.write(bytes(HEADER))
        for part in _contents(weights):
            file.write(part)
        file.flush()
        with mmap.mmap(file.fileno(), HEADER + size) as mapped:
            whole = (ctypes.c_char * len(mapped)).from_buffer(mapped)
            total = checksum(ctypes.addressof(whole) + HEADER, size)
            del whole
        file.seek(0)
        file.write(f"{MAGIC}{identity} {size} {total:016x}\n".encode())


def _describe(package: Package, built: _Built) -> dict[str, Any]:
    first, *more = map(_tensors, package.variants)
    return {
        "format": 1, "id": built.identity, "name": package.name, **first, "more": more,
        **package.description, "target": built.target,
        "machine": platform.machine(), "processor": built.processor,
        "threads": torch.get_num_threads(),
        "made_with": {"torch": torch.__version__, "compiler": built.compiler},
    }  # fmt: skip


def _tensors(variant: Variant) -> dict[str, Any]:
    tensors = [result for result in variant.code.results if isinstance(result, Seen)]
    return {
        "inputs": [{"name": one.name, **_description(one.dtype, one.size, one.stride),
                    "written": one.written} for one in variant.arguments],
        "outputs": [_description(one.dtype, one.size, one.stride) for one in tensors],
    }  # fmt: skip


def _description(dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> dict[str, Any]:
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, "sizes": list(size), "strides": list(stride)}


def _readme(title: str, described: Mapping[str, Any]) -> str:
    def rows(items: Sequence[Mapping[str, Any]]) -> str:
        return "\n".join(f"| {one.get('name', number)} | {one['dtype']} | {one['sizes']} | "
                         f"{one['strides']} |" for number, one in enumerate(items))  # fmt: skip

    return README.format(
        folder=title, inputs=", ".join(f"input{n}" for n in range(len(described["inputs"]))),
        input_rows=rows(described["inputs"]), output_rows=rows(described["outputs"]),
        name=described["name"], where=_where(described))


def _where(described: Mapping[str, Any]) -> str:
    """On which machines it runs."""
    machine, processor = described["machine"], described["processor"]
    if described["target"] == "cpu":
        return (f"It runs on processors of kind {machine} with: {processor}. Its kernels use "
                f"{described['threads']} threads.")
    return (f"It runs on GPUs of kind {described['target']}, in programs for processors of kind "
            f"{machine}. Inputs lie on the host or on the GPU.")
