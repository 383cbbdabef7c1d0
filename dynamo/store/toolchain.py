"""The C++ compiler of this machine: found once, remembered on disk, described for cache keys.

What comes out is a `Toolchain` (the command and the texts that a cache key needs), or the sentence
that says why there is none. Looking at the compiler costs some 30 ms; the remembered answer, which
holds as long as the compiler's file is the same, costs none of it.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

from dynamo.store.clang_openmp import OPENMP_UNIT
from dynamo.store.content import Key, Store, make_key
from dynamo.store.processor import processor

COMPILERS = ("g++", "clang++", "c++")

BASE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fno-tree-loop-distribute-patterns",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-Wno-attributes",
    "-w",
    "-pipe",
)
LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-O1", "-Wl,--hash-style=gnu")
LIBRARIES = ("-lmvec", "-lm")
ONLY_GCC = ("-fno-tree-loop-distribute-patterns",)
OPENMP = ("-fopenmp",)
# clang compiles for OpenMP so, and does not link LLVM's runtime: see `OPENMP_UNIT`.
OPENMP_OF_CLANG, GCC_RUNTIME = ("-Xclang", "-fopenmp"), ("-lgomp",)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that was seen to work.

    `version` and `isa` are what a compiled file depends on besides its source and flags.
    """

    compiler: str
    version: str
    isa: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    libraries: tuple[str, ...]

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version

    @property
    def more_units(self) -> tuple[str, ...]:
        """Texts that each library is compiled with beside its own."""
        return (OPENMP_UNIT,) if self.is_clang and "-fopenmp" in self.compile_flags else ()

    @property
    def openmp_link_flags(self) -> tuple[str, ...]:
        """What makes the linker take the runtime of OpenMP; clang's is among the libraries."""
        return OPENMP if "-fopenmp" in self.compile_flags and not self.is_clang else ()


def find_toolchain(store: Store) -> Toolchain | str:
    """The compiler to use, or why there is none.

    `CXX` names another compiler than the first of `COMPILERS` that exists.
    """
    chosen = os.environ.get("CXX")
    names = (chosen,) if chosen else COMPILERS
    paths = [path for path in map(shutil.which, names) if path]
    if not paths:
        return f"no C++ compiler was found (looked for {', '.join(names)})"
    path = paths[0]
    isa = processor().text
    stat = os.stat(os.path.realpath(path))
    identity = f"{os.path.realpath(path)} {stat.st_size} {stat.st_mtime_ns}"
    key = make_key("toolchain", {"compiler": identity, "isa": isa, "flags": repr(BASE_FLAGS)})
    remembered = store.values(key)
    if remembered is not None:
        if store.find(_last_key(), ".json") is None:
            store.keep_values(_last_key(), remembered)
        return _decode(remembered)
    toolchain = _probe(path, isa)
    if isinstance(toolchain, Toolchain):
        for each in (key, _last_key()):
            store.keep_values(each, asdict(toolchain))
    return toolchain


def _last_key() -> Key:
    return make_key("last_toolchain", {"isa": processor().text, "flags": repr(BASE_FLAGS)})


def last_toolchain(store: Store) -> Toolchain | None:
    """The compiler that was last found to work here, which may be gone: what was built by it still
    runs."""
    remembered = store.values(_last_key())
    return None if remembered is None else _decode(remembered)


def _decode(fields: dict[str, Any]) -> Toolchain:
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Toolchain(**fields | lists)


def _probe(path: str, isa: str) -> Toolchain | str:
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if version.returncode != 0:
        said = version.stderr.strip()
        return f"{path} --version failed" + (f": {said}" if said else "")
    title = version.stdout.splitlines()[0]
    openmp, runtime = (OPENMP_OF_CLANG, GCC_RUNTIME) if "clang" in title else (OPENMP, ())
    kind = (processor().flag,)
    wide = (*kind, "-mprefer-vector-width=512") if platform.machine() == "x86_64" else kind
    known = tuple(flag for flag in BASE_FLAGS if flag not in ONLY_GCC)
    bases = (BASE_FLAGS, known)
    for threads, processors in itertools.product((openmp, ()), (wide, kind, ())):
        for base in bases:
            flags, more = (*base, *processors, *threads), runtime if threads else ()
            if not _refusal(path, flags, more):
                libraries = (*more, *_existing_libraries(path, known))
                return Toolchain(path, title, isa, flags, LINK_FLAGS, libraries)
    return f"{path} can't compile an empty function: {_refusal(path, known)}"


def _refusal(path: str, flags: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Empty where an empty function can be compiled so, else the first line of what is said."""
    command = [path, *flags, "-x", "c++", "-", "-shared", "-o", os.devnull, *libraries]
    done = subprocess.run(command, input="int f() { return 0; }", capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode == 0:
        return ""
    return next(iter(done.stderr.splitlines()), f"it ends with {done.returncode}")


def _existing_libraries(path: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    return LIBRARIES[1:] if _refusal(path, flags, LIBRARIES) else LIBRARIES
