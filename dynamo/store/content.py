"""The folder of compiled things: content-addressed files shared by all processes of one user.

A key goes in (see `make_key`), bytes or a file come out. Files appear by atomic rename, so that
readers never see half of one and two writers of the same key do no harm. Whoever looks a key up can
say why it was missing: the parts of the key are cached in readable form beside the entry and the
nearest entry of the same kind names the part that differs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynamo.base import logs
from dynamo.base.config import config

KEY_LENGTH = 40
SHOWN = 60
LONGEST = 8000  # characters of a part that is cached to tell what differs
SOURCE = "source"  # a part that lies in a file of its own
DIGEST = 32  # bytes of the digest of a sealed content


@dataclass(frozen=True, slots=True)
class Key:
    """What an entry depends on: `parts` maps each name to a short text (long texts are hashed).
    texts: those that are not too long, as they are.

    >>> make_key("kernel", {"source": "int f();", "flags": "-O3"}).digest == make_key(
    ...     "kernel", {"flags": "-O3", "source": "int f();"}).digest
    True
    """

    kind: str
    digest: str
    parts: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def readable(self) -> dict[str, str]:
        """The parts as a person reads them."""
        return dict(self.parts) | dict(self.texts)


def make_key(kind: str, parts: dict[str, str]) -> Key:
    """The key of the entry of `kind` that depends on exactly `parts`."""
    short = tuple(
        (name, text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest())
        for name, text in sorted(parts.items())
    )
    digest = hashlib.sha256(repr((kind, short)).encode()).hexdigest()[:KEY_LENGTH]
    texts = tuple([row for row in parts.items()
                   if 200 < len(row[1]) <= LONGEST and row[0] != SOURCE])  # fmt: skip
    return Key(kind, digest, short, texts)


@dataclass(frozen=True, slots=True)
class Notes:
    """What is noted of a part beside it. text: kept with an entry; difference: what is said beside
    that of another one."""

    part: str
    text: str
    difference: Callable[[str], str]


NOTES = "notes"


@dataclass(frozen=True, slots=True)
class Store:
    """One cache folder: `config.cache_dir`, or another in tests."""

    root: Path

    def path(self, key: Key, suffix: str) -> Path:
        """Where the entry lies or would lie."""
        return self.root / key.kind / key.digest[:2] / (key.digest + suffix)

    def find(self, key: Key, suffix: str) -> Path | None:
        """The entry's file, if it is there."""
        path = self.path(key, suffix)
        if not is_owned_by_user(path):
            return None
        note_used(path)
        return path

    def read(self, key: Key, suffix: str) -> bytes | None:
        """The entry's content, if it is there."""
        path = self.path(key, suffix)
        try:
            with path.open("rb") as file:
                if not _readable(os.fstat(file.fileno())):
                    return None
                content = file.read()
        except OSError:
            return None
        note_used(path)
        return content

    def write(self, key: Key, suffix: str, content: bytes) -> Path:
        """Puts `content` there; the last of several writers wins."""
        return self.put(self.path(key, suffix), content)

    def put(self, path: Path, content: bytes) -> Path:
        """The same for a path in this folder."""
        with self.writing(path) as temporary:
            temporary.write_bytes(content)
        return path

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[Path]:
        """See `replacing`, for a path in this folder."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
        note_used(path)

    def keep(self, key: Key, suffix: str, content: bytes, notes: Notes | None = None) -> None:
        """Writes an entry as one file, and the parts of its key. notes: see `explain_miss`."""
        self.write(key, suffix, content)
        self.describe(key, notes)

    def keep_values(self, key: Key, values: Any) -> None:
        """Writes plain values, which are JSON behind a digest."""
        self.write(key, ".json", sealed(json.dumps(values).encode()))

    def values(self, key: Key) -> Any:
        """What `keep_values` has written; None where it is not there, or is not that any more."""
        content = self.read(key, ".json")
        try:
            return None if content is None else json.loads(opened(content))
        except Damaged as why:
            logs.log("cache").emit(f"{key.kind} {key.digest}: it is not usable, {why}")
            return None

    def remembered(self, key: Key, compute: Callable[[], Any]) -> Any:
        """Plain values that are computed once for each folder."""
        values = self.values(key)
        if values is None:
            values = compute()
            try:
                self.keep_values(key, values)
            except OSError as why:
                logs.log("cache").emit(f"{key.kind} {key.digest}: it is not cached, {why}")
        return values

    def file_of(self, key: Key, suffix: str, content: bytes) -> tuple[Path, bool]:
        """A file that holds this, and whether it was there."""
        if self.read(key, suffix) == content:
            return self.path(key, suffix), True
        return self.write(key, suffix, content), False

    def describe(self, key: Key, notes: Notes | None = None) -> None:
        """Keeps the parts of the key, for `explain_miss`."""
        texts = key.readable() | ({NOTES: notes.text} if notes else {})
        self.write(key, ".key", json.dumps(texts).encode())

    def explain_miss(
        self, key: Key, limit: int = 200, same: str = "", notes: Notes | None = None
    ) -> str:
        """Why `key` is not there: the difference to the nearest of the newest `limit` entries.

        same: a part; only entries that have it in common are compared. notes: say more of a part.
        """
        for path in self.path(key, "").parent.glob(f"{key.digest}.*"):
            if path.exists() and not is_owned_by_user(path):
                return f"another user has written {path}, or may write it"
        wanted = key.readable()
        folder = self.root / key.kind
        files = sorted(folder.glob("*/*.key"), key=_modified, reverse=True)[:limit]
        best: dict[str, str] | None = None
        nearest: dict[str, str] = {}
        for file in files:
            try:
                have = json.loads(file.read_text())
            except (OSError, ValueError):
                continue
            if not isinstance(have, dict) or same and have.get(same) != wanted[same]:
                continue
            differing = {n: _difference(str(have.get(n, "")), wanted[n])
                         for n in wanted if have.get(n) != wanted[n]}  # fmt: skip
            if best is None or len(differing) < len(best):
                best, nearest = differing, have
        if best is None:
            about = f" of {wanted[same]}" if same else ""
            return f"no {key.kind}{about} is in the cache yet"
        if not best:
            return f"the {key.kind} was removed from the cache"
        if notes is not None and notes.part in best and NOTES in nearest:
            best[notes.part] = notes.difference(nearest[NOTES])
        differences = ", ".join([f"{name}{how}" for name, how in best.items()])
        return f"the nearest {key.kind} differs in: {differences}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file for the block to write, which then takes the place of `path`; it is gone where the
    block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`: it draws from `random`, parts of which the program may have replaced.
    made = path.with_name(f"{path.stem}.{os.urandom(8).hex()}{path.suffix}")
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield made
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


class Stale(Exception):
    """What was cached does not fit what is here now, as a sentence."""


class Damaged(Stale):
    """What lies in the folder is not what was written."""


def sealed(content: bytes) -> bytes:
    """The content behind its digest.

    >>> opened(sealed(b"content"))
    b'content'
    """
    return hashlib.sha256(content).digest() + content


def opened(whole: bytes) -> bytes:
    """What was sealed. Errors: Damaged."""
    digest, content = whole[:DIGEST], whole[DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise Damaged("its bytes have changed")
    return content


def _difference(there: str, here: str) -> str:
    """Short texts that differ, as they are; of long ones, which are rows, the first that does.

    >>> _difference("[('a', 1), ('b', 2)]" + SHOWN * " ", "[('a', 1), ('b', 3)]" + SHOWN * " ")
    " ('b', 2 there, 'b', 3 here)"
    """
    if not there or not here:
        return ""
    if max(map(len, (there, here))) <= SHOWN:
        return f" ({there!r} there, {here!r} here)"
    begin = len(os.path.commonprefix([there, here]))
    line = here.rfind("\n", 0, begin) + 1
    begin = line if begin - line < SHOWN else here.rfind("(", 0, begin) + 1
    pieces = [re.split(r"[)\n]", text[begin:], maxsplit=1)[0] for text in (there, here)]
    if min(map(len, pieces)) == 0 or max(map(len, pieces)) > SHOWN or pieces[0] == pieces[1]:
        return ""
    return f" ({pieces[0]} there, {pieces[1]} here)"


def is_owned_by_user(path: Path) -> bool:
    """True for a file that nobody but this user (or the administrator) has written, or may."""
    try:
        return _readable(path.stat())
    except OSError:
        return False


def _readable(about: os.stat_result) -> bool:
    mode = about.st_mode
    mine = stat.S_ISREG(mode) and about.st_uid in (os.geteuid(), 0)
    return mine and not mode & stat.S_IWOTH


_used: set[Path] = set()
_watching: list[set[Path]] = [_used]


def note_used(path: Path) -> None:
    """This process has read a file of the folder, or put it there."""
    for seen in _watching:
        seen.add(path)


@contextlib.contextmanager
def watched_files() -> Iterator[set[Path]]:
    """The files that are used inside of the block (by other threads, too)."""
    seen: set[Path] = set()
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching[:] = [one for one in _watching if one is not seen]


def used_files(store: Store) -> list[Path]:
    """What this process has found in the folder or put there."""
    return [path for path in list(_used) if path.is_relative_to(store.root)]


def cache_store() -> Store:
    """The cache folder of this process."""
    return open_store(config.cache_dir)


def open_store(folder: str) -> Store:
    """The store in this folder; where that can't be written, one that dies with the process."""
    return Store(_writable(folder))


@functools.cache
def _writable(folder: str) -> Path:
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        return Path(folder)
    except OSError as error:
        other = tempfile.mkdtemp(prefix="dynamo-jit-")
        atexit.register(_remove, other, os.getpid())
        warnings.warn(
            f"dynamo: the cache folder {folder} can't be written ({error}); what this process "
            "compiles is not cached. DYNAMO_CACHE_DIR names another folder.",
            stacklevel=2,
        )
        return Path(other)


def _remove(folder: str, process: int) -> None:
    """At the end of the process that made the folder, not of one that it has forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
