"""Compiled code as bytes: what one process has compiled or read of the cache, for the cache of
another process or machine.

    data, info = save_cache_artifacts()     # after the program has run once
    load_cache_artifacts(data)              # elsewhere, before it runs

Entries are content-addressed: where compiler, processor or torch differ, they are not found, and
all is compiled as without them.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dynamo.store.content import KEY_LENGTH, Store, cache_store, used_files

# kind / start of the digest / digest . suffix
SUFFIXES = "so|key|json|py|graph|capture|cubin"
NAME = re.compile(rf"([a-z_]+)/([0-9a-f]{{2}})/\2[0-9a-f]{{{KEY_LENGTH - 2}}}\.({SUFFIXES})")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How many files of each kind there are: libraries, measured GEMMs, Triton modules, .."""

    files: Mapping[str, int]


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What this process has compiled, or found in the cache, so far; None where that is nothing."""
    store = cache_store()
    made = archive_of(store, used_files(store))
    return made if made[0] else None


def archive_of(store: Store, files: Iterable[Path]) -> tuple[bytes, CacheInfo]:
    """The same of some files of the store; no bytes where there are none."""
    names = {str(path.relative_to(store.root)) for path in files if path.is_relative_to(store.root)}
    names |= {f"{name.rpartition('.')[0]}.key" for name in names}
    out, counts = io.BytesIO(), Counter[str]()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(names):
            match, path = NAME.fullmatch(name), store.root / name
            if match is not None and path.is_file():
                archive.writestr(name, path.read_bytes())
                counts[match[1]] += 1
    return out.getvalue() if counts else b"", info_of(counts)


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo:
    """Puts what `save_cache_artifacts` gave into this machine's cache; what is there already stays.

    The bytes hold native code that will run: load only what you trust. Errors: ValueError for other
    bytes, before anything is written.
    """
    return unpack(serialized_artifacts, cache_store())


def unpack(archive: bytes, store: Store, replaces: bool = False) -> CacheInfo:
    """The same for any store. replaces: a file with other contents is replaced."""
    try:
        opened = zipfile.ZipFile(io.BytesIO(archive))
        contents = {name: opened.read(name) for name in opened.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"these bytes are not what save_cache_artifacts gave: {error}") from None
    kinds = [match[1] for match in map(NAME.fullmatch, contents) if match is not None]
    if len(kinds) < len(contents):
        strange = next(name for name in contents if NAME.fullmatch(name) is None)
        raise ValueError(f"these bytes are not what save_cache_artifacts gave: {strange!r}")
    for name, content in contents.items():
        path = store.root / name
        if not path.is_file() or replaces and path.read_bytes() != content:
            store.put(path, content)
    return info_of(Counter(kinds))


def info_of(counts: Counter[str]) -> CacheInfo:
    return CacheInfo(MappingProxyType(dict(sorted(counts.items()))))
