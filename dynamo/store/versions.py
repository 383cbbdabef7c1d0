"""The versions of what compiles, as parts of keys and as facts of files for other machines."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

import torch

from dynamo.store.content import cache_store, make_key

PACKAGES = Path(__file__).parents[2]
DIGEST = 16


def versions() -> dict[str, str]:
    """Of torch, Python and this package."""
    return {
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": platform.python_version(),
        "dynamo-jit": own_source(),
    }


@functools.cache
def own_source() -> str:
    """A digest of this package's files; the cache folder knows that of files that are unchanged."""
    rows = [row for name in ("dynamo", "inductor") for row in _files(str(PACKAGES / name))]
    key = make_key("sources", {"files": repr(rows)})
    return str(cache_store().remembered(key, lambda: _digest_of([row[:2] for row in rows])))


def _digest_of(files: list[tuple[str, int]]) -> str:
    content = hashlib.sha256()
    for path, size in files:
        content.update(f"{os.path.basename(path)} {size} ".encode())
        with open(path, "rb", buffering=0) as file:  # of hundreds of small files
            content.update(file.read())
    return content.hexdigest()[:DIGEST]


def _files(folder: str) -> list[tuple[str, int, int, int, int]]:
    """Each file of the package, and what changes when it does."""
    rows = []
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if item.is_dir(follow_symlinks=False):
            if item.name not in ("__pycache__", "csrc"):
                rows += _files(item.path)
        elif item.name.endswith((".py", ".so")):
            about = item.stat()
            rows.append((item.path, about.st_size, about.st_mtime_ns, about.st_ctime_ns,
                         about.st_ino))  # fmt: skip
    return rows
