"""The store of compiled things, the compiler, and building."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dynamo.base.config import config
from dynamo.base.counters import counters
from dynamo.store.content import Stale, Store, make_key, open_store
from dynamo.store.records import Cache, Record, Uncacheable
from dynamo.store.toolchain import Toolchain, find_toolchain
from inductor.runtime.build import BuildError, build_library

ONE = 'extern "C" __attribute__((visibility("default"))) int one() { return 1; }'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def toolchain(store: Store) -> Toolchain:
    found = find_toolchain(store)
    assert isinstance(found, Toolchain), found
    return found


def test_key_depends_on_every_part() -> None:
    parts = {"source": "a", "flags": "b"}
    key = make_key("library", parts)
    assert key == make_key("library", dict(reversed(parts.items())))
    assert key != make_key("graph", parts)
    assert key.digest != make_key("library", parts | {"flags": "c"}).digest


def test_write_read_and_private_folder(store: Store) -> None:
    key = make_key("graph", {"text": "x"})
    assert store.read(key, ".bin") is None
    path = store.write(key, ".bin", b"content")
    assert store.read(key, ".bin") == b"content"
    assert stat.S_IMODE(os.stat(store.root).st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_explained_miss(store: Store) -> None:
    old = make_key("graph", {"text": "x", "version": "1"})
    new = make_key("graph", {"text": "x", "version": "2"})
    assert "no graph" in store.explain_miss(new)
    store.describe(old)
    assert store.explain_miss(new) == "the nearest graph differs in: version ('1' there, '2' here)"


def test_toolchain_is_remembered(store: Store, toolchain: Toolchain) -> None:
    assert len(list((store.root / "toolchain").glob("*/*.json"))) == 1
    assert find_toolchain(store) == toolchain


def test_missing_compiler_is_one_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_toolchain(store) == "no C++ compiler was found (looked for no-such-compiler)"


def test_build_and_reuse(store: Store, toolchain: Toolchain) -> None:
    built = build_library([ONE], toolchain, store, explain=True)
    assert not built.reused and built.reason == "no library is in the cache yet"
    assert ctypes.CDLL(str(built.path)).one() == 1
    assert build_library([ONE], toolchain, store).reused


def cut(content: bytes) -> bytes:
    return content[:len(content) // 2]


def changed(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]


@pytest.mark.parametrize("damage", [cut, changed, lambda content: b"", lambda content: content[:-1]])
def test_damaged_files_are_made_again(store: Store, toolchain: Toolchain, damage: Callable[[bytes], bytes]) -> None:
    first = build_library([ONE], toolchain, store)
    content = first.path.read_bytes()
    first.path.write_bytes(damage(content))
    (remembered,) = (store.root / "toolchain").glob("*/*.json")
    remembered.write_bytes(damage(remembered.read_bytes()))
    assert find_toolchain(store) == toolchain
    again = build_library([ONE], toolchain, store)
    assert not again.reused and again.path.read_bytes() == content
    assert build_library([ONE], toolchain, store).reused


@pytest.mark.parametrize("damage", ["other user", "others may write"])
def test_what_others_may_have_written_is_not_loaded(store: Store, toolchain: Toolchain, damage: str) -> None:
    path = build_library([ONE], toolchain, store).path
    assert path.stat().st_mode & 0o777 == 0o700
    if damage == "others may write":
        path.chmod(0o702)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("only the administrator gives files away")
    assert not build_library([ONE], toolchain, store).reused


@pytest.mark.parametrize("damage", [cut, changed, lambda content: b"", lambda content: b"{}"])
def test_values_that_have_changed_are_not_there(store: Store, damage: Callable[[bytes], bytes]) -> None:
    key = make_key("products", {"isa": "one"})
    store.keep_values(key, {"a": [1.0, 2]})
    assert store.values(key) == {"a": [1.0, 2]}
    path = store.path(key, ".json")
    path.write_bytes(damage(path.read_bytes()))
    assert store.values(key) is None


def test_what_is_remembered_is_computed_once(store: Store) -> None:
    key, computed = make_key("speed", {"of": "one"}), []
    for _ in range(2):
        assert store.remembered(key, lambda: computed.append(1) or [2.0]) == [2.0]
    assert computed == [1]


def raises(error: Exception) -> Callable[..., bytes]:
    def fail(*content: bytes) -> bytes:
        raise error

    return fail


def test_a_record_that_fails_is_not_there(store: Store) -> None:
    record = Record(Cache("a test", "the cache of a test", "nothing is lost"), store, make_key("text", {}), ".txt")
    record.write(raises(Uncacheable("it has no text")))
    assert record.read(bytes) is None and not list(store.root.glob("text/*/*"))
    record.write(lambda: b"content")
    assert record.read(bytes) == b"content" and record.read(raises(Stale("of another day"))) is None
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="the cache of a test failed with what was"):
        assert record.read(raises(KeyError("defect"))) is None
        assert counters["internal_errors"].pop("a test, what was read: KeyError: 'defect'") == 1
    with config.patch(suppress_errors=False), pytest.raises(KeyError):
        record.write(raises(KeyError("defect")))


def test_a_module_on_the_disk_is_the_one_that_was_written(store: Store) -> None:
    key = make_key("triton", {"source": "a = 1"})
    assert store.file_of(key, ".py", b"a = 1") == (store.path(key, ".py"), False)
    assert store.file_of(key, ".py", b"a = 1") == (store.path(key, ".py"), True)
    store.path(key, ".py").write_bytes(b"a = 2")
    path, there = store.file_of(key, ".py", b"a = 1")
    assert not there and path.read_bytes() == b"a = 1"


def test_units_are_linked(store: Store, toolchain: Toolchain) -> None:
    caller = ONE.replace("one", "two").replace("return 1", "return 1 + one()")
    caller = 'extern "C" int one();\n' + caller
    built = build_library([ONE, caller], toolchain, store)
    assert ctypes.CDLL(str(built.path)).two() == 2


def test_a_full_disk_is_no_defect(store: Store, toolchain: Toolchain, tmp_path: Path) -> None:
    linker = tmp_path / "linker"
    linker.write_text("#!/bin/sh\necho /usr/bin/ld: final link failed: No space left on device >&2\nexit 1\n")
    linker.chmod(0o700)
    with pytest.raises(OSError, match="No space left on device"):
        build_library([ONE], replace(toolchain, compiler=str(linker)), store)
    assert not list(store.root.glob("library/*/*.so"))


def test_refused_source_leaves_no_library(store: Store, toolchain: Toolchain) -> None:
    with pytest.raises(BuildError, match="nonsense"):
        build_library(["nonsense;"], toolchain, store)
    assert not list(store.root.glob("library/*/*.so"))


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.warns(UserWarning, match="DYNAMO_CACHE_DIR"):
        store = open_store(str(taken))
    key = make_key("text", {"a": "b"})
    store.write(key, ".txt", b"kept")
    assert store.read(key, ".txt") == b"kept"
    assert open_store(str(taken)).root == store.root  # one warning, one folder
    assert open_store(str(tmp_path)).root == tmp_path


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        Store(tmp_path).write(make_key("text", {"a": "b"}), ".txt", b"content")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
