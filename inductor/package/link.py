"""The library of a package: objects of its kernels, of our own library kernels and of its runtime.

In: texts of translation units. Out: the bytes of a shared library that needs nothing but OpenMP and
the C library. Objects that many packages share (runtime, GEMMs, attention, convolutions) are
cached on disk.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dynamo.base.waiting import in_threads
from dynamo.store.content import Key, Store, make_key
from dynamo.store.records import Cache, Record
from dynamo.store.toolchain import Toolchain
from inductor.kernels.cpu.attention.source import attention_name, attention_unit
from inductor.kernels.cpu.convolution import (
    CHAIN_NAME,
    CONVOLUTION_NAME,
    CONVOLUTION_UNITS,
    DEPTHWISE_NAME,
    WINOGRAD_NAME,
)
from inductor.kernels.cpu.gemm import GEMM_NAME, GEMM_UNIT
from inductor.kernels.cpu.half_gemm import HALF_NAME, HALF_UNIT
from inductor.package.tables import entry_name
from inductor.runtime.build import BuildError, run_compiler
from inductor.runtime.own_libraries import Units, with_fused_sums

SOURCES = Path(__file__).parent / "cpp"
CACHE = Cache("objects", "the cache of objects of packages", "they are compiled")
# Functions of our libraries, and the texts of these.
OWN: tuple[tuple[tuple[str, ...], Units], ...] = (
    ((GEMM_NAME,), (GEMM_UNIT,)),
    ((HALF_NAME,), (HALF_UNIT,)),
    ((attention_name(False),), (attention_unit(False),)),
    ((attention_name(True),), (attention_unit(True),)),
    ((CONVOLUTION_NAME, WINOGRAD_NAME, DEPTHWISE_NAME, CHAIN_NAME), CONVOLUTION_UNITS),
)
# The runtime runs before it is known what the processor can do.
RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall")
LINK = ("-shared", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL",
        "-Wl,--as-needed", "-Wl,-O1", "-Wl,-z,noexecstack")  # fmt: skip
ENTRY = 'extern "C" __attribute__((visibility("default"))) int run(Runtime* rt)'
EXPORTED = "{ global: dynamo_package_*; local: *; };\n"
# Macros of the compiler, and the processor's flags in /proc/cpuinfo without which their
# instructions are not there.
INSTRUCTIONS = {
    "__SSE3__": "pni", "__SSSE3__": "ssse3", "__SSE4_1__": "sse4_1", "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt", "__AVX__": "avx", "__AVX2__": "avx2", "__FMA__": "fma",
    "__F16C__": "f16c", "__BMI__": "bmi1", "__BMI2__": "bmi2", "__LZCNT__": "abm",
    "__MOVBE__": "movbe", "__AVX512F__": "avx512f", "__AVX512VL__": "avx512vl",
    "__AVX512BW__": "avx512bw", "__AVX512DQ__": "avx512dq", "__AVX512CD__": "avx512cd",
    "__AVX512VNNI__": "avx512_vnni", "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16", "__AVX512VBMI__": "avx512vbmi",
    "__AVX512VBMI2__": "avx512_vbmi2", "__AVX512IFMA__": "avx512ifma",
    "__AVX512BITALG__": "avx512_bitalg", "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq",
    "__AVXVNNI__": "avx_vnni", "__AMX_TILE__": "amx_tile", "__AMX_BF16__": "amx_bf16",
    "__AMX_INT8__": "amx_int8", "__ARM_FEATURE_SVE": "sve", "__ARM_FEATURE_BF16": "bf16",
    "__ARM_FEATURE_DOTPROD": "asimddp", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
}  # fmt: skip


# Those that decide about the order of prepared weights (`kernels/cpu/gemm.py`, ..).
VECTORS = {macro: INSTRUCTIONS[macro] for macro in (
    "__AVX__", "__AVX512F__", "__AVX512BF16__", "__AMX_BF16__")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Object:
    """A translation unit and how it is compiled. shared: by many packages, so it is cached."""

    source: str
    flags: tuple[str, ...]
    shared: bool = False
    include: bool = False  # of the headers beside the runtime
    variant: int | None = None  # whose kernels these are


def for_processor(toolchain: Toolchain, processor: str | None) -> Toolchain:
    """The compiler, for a kind of processor (`-march`) instead of this machine's."""
    if processor is None:
        return toolchain
    flags = [flag for flag in toolchain.compile_flags if not flag.startswith(("-march", "-mcpu"))]
    return replace(toolchain, compile_flags=(*flags, f"-march={processor}"), isa=processor)


def needed_instructions(toolchain: Toolchain) -> str:
    """The flags of /proc/cpuinfo that code of this compiler needs. Errors: ValueError for an
    unknown kind of processor."""
    macros = _macros(toolchain)
    return " ".join(flag for macro, flag in INSTRUCTIONS.items() if macro in macros)


def check_vectors(toolchain: Toolchain, here: Toolchain) -> None:
    """Weights are put in an order that goes by the vectors of this machine. Errors: ValueError
    where the other processor's are not these."""
    wanted, own = (_macros(each) & set(VECTORS) for each in (toolchain, here))
    if wanted != own:
        names = " ".join(VECTORS[macro] for macro in VECTORS if macro in own) or "neither"
        raise ValueError(f"processor={toolchain.isa!r} has other vectors than this machine, for "
                         f"which weights are put in order; of {', '.join(VECTORS.values())} it has "
                         f"to have: {names}")


def _macros(toolchain: Toolchain) -> set[str]:
    """Those that the compiler defines."""
    command = [toolchain.compiler, *toolchain.compile_flags, "-dM", "-E", "-x", "c++", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"processor={toolchain.isa!r}: the compiler says {done.stderr[:400]}")
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("#define ")}


def objects_of(
    variants: Sequence[Sequence[str]], tables: str, toolchain: Toolchain
) -> list[Object]:
    """All translation units of a library. variants: the kernels for each set of sizes."""
    own = with_fused_sums(toolchain).compile_flags
    objects = []
    for number, units in enumerate(variants):
        if sum(ENTRY in unit for unit in units) != 1:
            raise AssertionError("the generated code has no entry")
        entry = ENTRY.replace(" run(", f" {entry_name(number)}(")
        objects += [Object(unit.replace(ENTRY, entry), toolchain.compile_flags, variant=number)
                  for unit in units]  # fmt: skip
    every = [unit for units in variants for unit in units]
    for names, texts in OWN:
        if any(name in unit for name in names for unit in every):
            objects += [Object(text, own, shared=True) for text in texts]
    objects += [Object(text, own, shared=True) for text in toolchain.more_units]
    runtime = (SOURCES / "runtime.cpp").read_text()
    objects.append(Object(runtime, RUNTIME_FLAGS, shared=True, include=True))
    objects.append(Object(tables, RUNTIME_FLAGS, include=True))
    return objects


def gpu_objects(tables: str, launches: str, cubins: Path) -> list[Object]:
    """The same of a library for a GPU. cubins: the folder with `kernels.bin`."""
    runtime = (SOURCES / "gpu_runtime.cpp").read_text()
    return [
        Object(runtime, RUNTIME_FLAGS, shared=True, include=True),
        Object(tables, RUNTIME_FLAGS, include=True),
        Object(launches, (*RUNTIME_FLAGS, f"-Wa,-I{cubins}"), include=True),
    ]


def link_library(
    objects: Sequence[Object], toolchain: Toolchain, store: Store, cores: int
) -> bytes:
    """The shared library. Errors: BuildError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = in_threads(lambda numbered: _compiled(*numbered, toolchain, store, folder),
                           enumerate(objects), cores)
        variants = {one.variant for one in objects if one.variant is not None}
        if len(variants) > 1:
            kernels = [_merged([path for path, one in zip(paths, objects, strict=True)
                                if one.variant == number], toolchain, folder / f"variant{number}.o")
                       for number in sorted(variants)]  # fmt: skip
            others = zip(paths, objects, strict=True)
            paths = [*kernels, *(path for path, one in others if one.variant is None)]
        library, exported = folder / "libmodel.so", folder / "exported"
        exported.write_text(EXPORTED)
        run_compiler([
            toolchain.compiler, *LINK, *toolchain.openmp_link_flags,
            f"-Wl,--version-script={exported}", *map(str, paths), "-o", str(library),
            *toolchain.libraries, "-lpthread", "-ldl"])
        return library.read_bytes()


def _merged(paths: Sequence[Path], toolchain: Toolchain, merged: Path) -> Path:
    """One object, in which only the entry is known outside: kernels of variants share names."""
    if shutil.which("objcopy") is None:
        raise BuildError("packages of several sizes need objcopy (binutils), which is not there")
    run_compiler([toolchain.compiler, "-r", "-nostdlib", *map(str, paths), "-o", str(merged)])
    run_compiler(["objcopy", "--localize-hidden", str(merged)])
    return merged


def _compiled(number: int, one: Object, toolchain: Toolchain, store: Store, folder: Path) -> Path:
    path = folder / f"{number}.o"
    record = Record(CACHE, store, _key(one, toolchain), ".o")
    if one.shared and record.read(path.write_bytes) is not None:
        record.report_hit()
        return path
    source = folder / f"{number}.cpp"
    source.write_text(one.source)
    include = ["-I", str(SOURCES)] if one.include else []
    run_compiler([toolchain.compiler, *one.flags, *include, "-c", str(source), "-o", str(path)])
    if one.shared:
        record.write(path.read_bytes)
    return path


def _key(one: Object, toolchain: Toolchain) -> Key:
    headers = "".join(path.read_text() for path in sorted(SOURCES.glob("*.h"))) * one.include
    return make_key("object", {
        "source": one.source + headers, "flags": " ".join(one.flags),
        "compiler": toolchain.version, "isa": toolchain.isa})


def copy_header(folder: Path) -> None:
    """Puts the header of programs in C++ there."""
    shutil.copy(SOURCES / "model.h", folder / "model.h")
