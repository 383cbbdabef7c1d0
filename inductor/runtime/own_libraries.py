"""Libraries of our own kernels, each built once per machine for all graphs; ahead, where one can.

In: the texts of its translation units. Out: the path of its library. Those that were built with the
package (`inductor/driver/shipped_libraries.py`) are taken where they are for this text, compiler
and processor. Else `begin` builds in a thread, as soon as it is known that a graph will ask: the
compiler is another process, so that several builds and the compile go on side by side. Whoever asks
for the library waits for that.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dynamo.base import logs
from dynamo.store.content import Store, note_used
from dynamo.store.toolchain import Toolchain, find_toolchain
from inductor.runtime.build import BuildError, Built, build_library, is_whole, library_key

Units = tuple[str, ...]
Loaded = TypeVar("Loaded")
SHIPPED = Path(__file__).parent / "libraries"

_running: dict[Path, Future[Built]] = {}
os.register_at_fork(after_in_child=_running.clear)  # the threads are the parent's


def begin(units: Units, store: Store, toolchain: Toolchain) -> None:
    """Build the library in a thread, unless it is there. Errors are raised by `own_library`."""
    fused = with_fused_sums(toolchain)
    path = _place(units, fused, store)
    if path.exists() or path in _running or shipped(units, fused) is not None:
        return
    future = _running[path] = Future[Built]()
    threading.Thread(target=_build, args=(future, units, fused, store)).start()


def own_library(units: Units, store: Store, toolchain: Toolchain) -> str:
    """Build (or find) the library. Errors: BuildError."""
    fused = with_fused_sums(toolchain)
    running = _running.pop(_place(units, fused, store), None)
    if running is not None:
        path = running.result().path
        note_used(path)
        return str(path)
    packaged = shipped(units, fused)
    if packaged is not None:
        return str(packaged)
    return str(build_library(units, fused, store).path)


def loaded(load: Callable[[Store, Toolchain], Loaded], store: Store, what: str) -> Loaded | None:
    """What `load` makes of a library; None, with a word in the log, where it can't be built."""
    toolchain = find_toolchain(store)
    if isinstance(toolchain, str):
        return None
    try:
        return load(store, toolchain)
    except BuildError as error:
        why = str(error)
        logs.log("inductor").emit(lambda: f"there is no {what} of our own: {why}")
        return None


def shipped(units: Units, toolchain: Toolchain) -> Path | None:
    """The library that came with the package, if it is the one that would be built here."""
    path = SHIPPED / f"{_key(units, toolchain).digest}.so"
    return path if path.exists() and is_whole(path) else None


def settle() -> None:
    """Wait until no build is running: it would disturb what is measured."""
    wait(list(_running.values()))


def with_fused_sums(toolchain: Toolchain) -> Toolchain:
    """The compiler may fuse products and sums: these kernels are not asked for eager's last bit."""
    flags = tuple(flag for flag in toolchain.compile_flags if not flag.startswith("-ffp-contract"))
    return replace(toolchain, compile_flags=(*flags, "-ffp-contract=fast"))


def _place(units: Units, toolchain: Toolchain, store: Store) -> Path:
    return store.path(_key(units, toolchain), ".so")


_key = functools.cache(library_key)


def _build(future: Future[Built], units: Units, toolchain: Toolchain, store: Store) -> None:
    try:
        future.set_result(build_library(units, toolchain, store))
    except BaseException as error:  # raised where the library is asked for
        future.set_exception(error)
