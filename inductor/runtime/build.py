"""From C++ texts to a shared library on disk, once per content.

Comes in: the translation units of one graph. Goes out: the path of a library in the store. Several
units are compiled side by side and linked; one unit is compiled and linked by one command.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamo.background.jobs import is_background
from dynamo.base.waiting import in_threads, work_now
from dynamo.store.content import DIGEST, Key, Store, make_key
from dynamo.store.toolchain import Toolchain, find_toolchain, last_toolchain

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class BuildError(RuntimeError):
    """The compiler refused generated code: a defect of the code generator."""


class FullDisk(OSError, BuildError):
    """The compiler could not write its result."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk and how it came to be there."""

    path: Path
    key: Key
    reused: bool
    reason: str  # why it had to be built; empty if it was reused


def library_key(units: Sequence[str], toolchain: Toolchain) -> Key:
    """What a library depends on."""
    return make_key(
        "library",
        {
            "source": "\0".join((*units, *toolchain.more_units)),
            "flags": " ".join(
                (*toolchain.compile_flags, *toolchain.link_flags, *toolchain.libraries)
            ),
            "compiler": toolchain.version,
            "isa": toolchain.isa,
        },
    )


def is_whole(path: Path) -> bool:
    """True for a library that is what was built: behind its end, which no loader reads, stands the
    digest of the rest."""
    content = path.read_bytes()
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _seal(library: Path) -> None:
    """Appends the digest. Nobody but the owner may write it then, whatever the umask says."""
    digest = hashlib.sha256(library.read_bytes()).digest()
    with library.open("ab") as file:
        file.write(digest)
    library.chmod(0o700)


def build_library(
    units: Sequence[str], toolchain: Toolchain, store: Store, explain: bool = False
) -> Built:
    """The library made from `units`; from the store when it is there.

    explain: find out why it was not there (reads the store's descriptions).
    """
    key = library_key(units, toolchain)
    cached = store.find(key, ".so")
    if cached is not None and is_whole(cached):
        return Built(cached, key, True, "")
    reason = store.explain_miss(key) if explain else "not in the cache"
    path = store.path(key, ".so")
    units = (*units, *toolchain.more_units)
    sources = [
        store.write(key, ".cpp" if len(units) == 1 else f".{i}.cpp", unit.encode())
        for i, unit in enumerate(units)
    ]
    with store.writing(path) as temporary:
        if len(sources) == 1:
            link = _link_command(toolchain, sources, temporary, compile_too=True)
            run_compiler([*_politely(), *link])
        else:
            _build_split(toolchain, sources, temporary)
        _seal(temporary)
    store.describe(key)
    return Built(path, key, False, reason)


def library_without_compiler(units: Sequence[str], store: Store) -> Path | None:
    """The library that an earlier process has made of `units`, where there is no compiler now; None
    where there is a compiler, or no such library."""
    if not isinstance(find_toolchain(store), str):
        return None
    toolchain = last_toolchain(store)
    cached = None if toolchain is None else store.find(library_key(units, toolchain), ".so")
    return cached if cached is not None and is_whole(cached) else None


def _build_split(toolchain: Toolchain, sources: list[Path], target: Path) -> None:
    objects = [target.with_suffix(f".{i}.o") for i in range(len(sources))]
    commands = [
        [toolchain.compiler, *toolchain.compile_flags, "-c", "-x", "c++", str(s), "-o", str(o)]
        for s, o in zip(sources, objects, strict=True)
    ]
    try:
        polite = [[*_politely(), *command] for command in commands]
        in_threads(run_compiler, polite, len(os.sched_getaffinity(0)))
        run_compiler(_link_command(toolchain, objects, target, compile_too=False))
    finally:
        for item in objects:
            item.unlink(missing_ok=True)


def _link_command(
    toolchain: Toolchain, inputs: Sequence[Path], target: Path, compile_too: bool
) -> list[str]:
    flags = toolchain.compile_flags if compile_too else toolchain.openmp_link_flags
    names = [str(path) for path in inputs]
    return [
        toolchain.compiler,
        *flags,
        *toolchain.link_flags,
        *names,
        "-o",
        str(target),
        *toolchain.libraries,
    ]


def _politely() -> list[str]:
    """What goes before a compiler's command: in the background, the program goes first."""
    nice = shutil.which("nice") if is_background() else None
    return [] if nice is None else [nice, "-n", "10"]


def run_compiler(command: list[str]) -> None:
    """Runs a compiler. In the thread that compiles, other work is done meanwhile. Errors:
    BuildError."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        try:
            work_now()
            _, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        for code in NO_ROOM:
            if os.strerror(code) in errors:
                raise FullDisk(code, os.strerror(code))
        raise BuildError(f"{' '.join(command)}\n{errors[:4000]}")
