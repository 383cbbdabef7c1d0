"""What the launchers of one compile were made of, for whoever keeps compiled graphs.

A launcher is native code and a description. While a compile is `watched`, each that it loads is
noted with the library's file and digest, and the operators that were left to ATen with it; from the
file, the digest and the description another process makes the same launcher, if the file still is
what it was.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from inductor.codegen.cpp.attention import attention_name
from inductor.codegen.cpp.convolution import CONVOLUTION_NAME
from inductor.codegen.cpp.product import PRODUCT_NAME
from inductor.runtime import _launch
from inductor.runtime.build import is_whole
from inductor.runtime.convolutions import Convolver, load_convolver
from inductor.runtime.cpu_attention import load_attention
from inductor.runtime.products import Product, load_product
from inductor.runtime.store import Store, is_ours, note_used
from inductor.runtime.toolchain import Toolchain, find_toolchain, last_toolchain


class Stale(Exception):
    """What was kept does not fit what is on the disk now. The text says what."""


@dataclass(frozen=True, slots=True)
class Launch:
    """name: the library's file in the store. calls: functions of our libraries that it calls."""

    name: str
    digest: str
    spec: dict[str, Any]
    calls: tuple[str, ...]


@dataclass(slots=True)
class Watched:
    """What a compile has loaded (launchers with what made them), and left to ATen."""

    launches: list[tuple[Any, str, dict[str, Any], tuple[str, ...]]] = field(default_factory=list)
    fallbacks: list[tuple[str, str]] = field(default_factory=list)

    def launch_of(self, launcher: Any, store: Store) -> Launch | None:
        """How a launcher is made again; None for one of another compile."""
        for known, path, spec, calls in self.launches:
            if known is launcher:
                name = str(Path(path).relative_to(store.root))
                return Launch(name, digest_of(Path(path)), spec, calls)
        return None


_watched: ContextVar[Watched | None] = ContextVar("watched", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """What this thread compiles inside."""
    found = Watched()
    token = _watched.set(found)
    try:
        yield found
    finally:
        _watched.reset(token)


def note_launcher(launcher: Any, path: str, spec: dict[str, Any], units: list[str]) -> None:
    """A launcher was made of a library that was built of these texts."""
    found = _watched.get()
    if found is not None:
        calls = tuple(name for name in OWN_FUNCTIONS if any(name in unit for unit in units))
        found.launches.append((launcher, path, spec, calls))


def note_fallbacks(operators: Sequence[tuple[str, str]]) -> None:
    """Operators of the graph were left to ATen, with the reasons."""
    found = _watched.get()
    if found is not None:
        found.fallbacks += operators


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def launch_again(
    name: str, digest: str, calls: Sequence[str], spec: dict[str, Any], store: Store
) -> Any:
    """The launcher, see `Launch`. Errors: Stale."""
    path = store.root / name
    if not is_ours(path) or not is_whole(path) or digest_of(path) != digest:
        raise Stale(f"the library {name} is not there, or is another one")
    note_used(path)
    for function in calls:
        OWN_FUNCTIONS[function](store)
    return _launch.Launcher(str(path), spec)


def _toolchain(store: Store) -> Toolchain | str:
    """The compiler that has built what is in the store, or the one that is there now."""
    return last_toolchain(store) or find_toolchain(store)


def product_of(store: Store) -> Product:
    """Our own matrix product, for kept graphs that need it. Errors: Stale."""
    toolchain = _toolchain(store)
    if isinstance(toolchain, str):
        raise Stale(toolchain)
    return load_product(store, toolchain)


def convolver_of(store: Store) -> Convolver:
    """The same of our own convolution. Errors: Stale."""
    toolchain = _toolchain(store)
    if isinstance(toolchain, str):
        raise Stale(toolchain)
    return load_convolver(store, toolchain)


def attention_of(half: bool, store: Store) -> None:
    """The same of our own attention; without a compiler, the operator computes it."""
    toolchain = _toolchain(store)
    if not isinstance(toolchain, str):
        load_attention(store, toolchain, half)


OWN_FUNCTIONS: Mapping[str, Callable[[Store], Any]] = {
    PRODUCT_NAME: product_of,
    CONVOLUTION_NAME: convolver_of,
    **{attention_name(half): partial(attention_of, half) for half in (False, True)},
}
