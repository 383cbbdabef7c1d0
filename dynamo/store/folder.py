"""What lies in the cache folder: how much it is, and how to make it less.

    dynamo.cache.info()             # folder, bytes, entries of each kind
    dynamo.cache.prune(500 << 20)   # what was used longest ago goes, down to 500 MiB
    dynamo.cache.clear()

Entries are removed whole (a library and what describes it). A process that has loaded one keeps it;
one that looks for it compiles it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dynamo.base.config import config
from dynamo.store.content import cache_store

STAMP = "looked_at"
LOADED = "shipped"  # has a folder for each file of `aot_compile`, with kinds as here
DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class FolderInfo:
    """folder: its path. bytes: of all files. entries: how many there are of each kind (`graph`,
    `library`, ..)."""

    folder: str
    bytes: int
    entries: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    files: tuple[Path, ...]
    size: int
    used: float


def cache_info() -> FolderInfo:
    """What is in the folder now.

    >>> cache_info().bytes >= 0
    True
    """
    root, counts, total = cache_store().root, dict[str, int](), 0
    for kind, entry in _entries(root):
        counts[kind] = counts.get(kind, 0) + 1
        total += entry.size
    return FolderInfo(str(root), total, dict(sorted(counts.items())))


def clear_cache() -> None:
    """Removes all entries."""
    root = cache_store().root
    for folder in _kinds(root):
        shutil.rmtree(folder, ignore_errors=True)


def prune_cache(size: int) -> int:
    """Removes entries, those first that were used longest ago, until the files take at most `size`
    bytes; how many bytes went."""
    root = cache_store().root
    entries = sorted((entry for _, entry in _entries(root)), key=lambda entry: entry.used)
    total, before = sum(entry.size for entry in entries), 0
    for entry in entries:
        if total <= size:
            break
        for file in entry.files:
            with contextlib.suppress(OSError):
                file.unlink()
        total -= entry.size
        before += entry.size
    return before


def keep_small() -> None:
    """Once a day: where the folder has grown beyond `config.cache_megabytes`, a quarter goes."""
    stamp, limit = cache_store().root / STAMP, config.cache_megabytes << 20
    try:
        age = time.time() - stamp.stat().st_mtime
    except OSError:
        age = DAY + 1.0
    if age > DAY:
        with contextlib.suppress(OSError):
            stamp.touch()
        if cache_info().bytes > limit:
            prune_cache(limit * 3 // 4)


def _kinds(root: Path) -> list[Path]:
    """The folders of entries, also of loaded files; others that the user may have put there are
    not ours."""
    folders = [*root.glob("*"), *root.glob(f"{LOADED}/*/*")]
    return [path for path in sorted(folders) if path.is_dir() and not path.is_symlink()
            and any(len(inner.name) == 2 for inner in path.iterdir())]  # fmt: skip


def _entries(root: Path) -> Iterator[tuple[str, _Entry]]:
    for folder in _kinds(root):
        by_name: dict[str, list[tuple[Path, os.stat_result]]] = {}
        for path in folder.glob("??/*"):
            with contextlib.suppress(OSError):
                by_name.setdefault(path.name.partition(".")[0], []).append((path, path.stat()))
        for files in by_name.values():
            size = sum(about.st_size for _, about in files)
            used = max(max(about.st_atime, about.st_mtime) for _, about in files)
            yield folder.name, _Entry(tuple(path for path, _ in files), size, used)
