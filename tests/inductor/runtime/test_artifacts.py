"""Compiled code as bytes: saved by one cache, found by another."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dynamo
import inductor
from dynamo.base.config import config


def compiled_in(folder: Path, function: Callable[..., torch.Tensor]) -> dict[str, int]:
    """Compiles and calls the function with this cache folder; how many libraries were built and
    found."""
    dynamo.reset()
    names = ("libraries_built", "libraries_reused")
    with config.patch(cache_dir=str(folder)):
        before = inductor.metrics.snapshot()
        x = torch.rand(64)
        torch.testing.assert_close(dynamo.compile(function)(x), function(x))
        after = inductor.metrics.snapshot()
    return {name: after.get(name, 0) - before.get(name, 0) for name in names}


def saved(folder: Path) -> tuple[bytes, dynamo.store.artifacts.CacheInfo]:
    with config.patch(cache_dir=str(folder)):
        found = dynamo.save_cache_artifacts()
    assert found is not None
    return found


def test_another_cache_finds_what_was_saved(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 1.25 + x

    first, second = tmp_path / "first", tmp_path / "second"
    assert compiled_in(first, f) == {"libraries_built": 1, "libraries_reused": 0}
    data, info = saved(first)
    assert info.files["library"] == 2  # and its key
    with config.patch(cache_dir=str(second)):
        assert dynamo.load_cache_artifacts(data) == info
        assert dynamo.load_cache_artifacts(data) == info  # it is there already
    assert compiled_in(second, f) == {"libraries_built": 0, "libraries_reused": 1}
    again, info = saved(second)  # found, not built
    assert info.files["library"] == 2
    assert zipfile.ZipFile(io.BytesIO(again)).testzip() is None


def test_nothing_is_saved_of_an_unused_cache(tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        assert inductor.save_cache_artifacts() is None


@pytest.mark.parametrize("name", [
    "../outside.so", "/tmp/outside.so", "library/00/../../../x.so", f"library/00/{'1' * 40}.so",
    f"library/00/{'0' * 40}.so\n", f"library/00/{'0' * 40}.sh", "nothing"])  # fmt: skip
def test_bytes_that_are_something_else(name: str, tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"library/00/{'0' * 40}.key", b"{}")
        archive.writestr(name, b"")
    with config.patch(cache_dir=str(tmp_path)):
        for given in (data.getvalue(), b"", data.getvalue()[:40]):
            with pytest.raises(ValueError, match="save_cache_artifacts"):
                inductor.load_cache_artifacts(given)
    assert not list(tmp_path.rglob("*.key"))
