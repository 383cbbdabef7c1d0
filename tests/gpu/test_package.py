"""Packages for a GPU on the real one: in Python beside eager, and from a program in C++."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from tests.gpu.support import DEVICE
from tests.package.test_package import HEADERS, read_tensors, small_model, tensors_in, write_tensors

Args = tuple[tuple[Any, ...], dict[str, Any]]
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("runner") / "runner"
    source = Path(__file__).parents[1] / "package" / "runner.cpp"
    subprocess.run(["g++", "-std=c++17", "-O1", "-I", str(HEADERS), str(source), "-o", str(program), "-ldl", "-lpthread"],
                   check=True)
    return program


def check(folder: Path, model: Any, make: Callable[[], Args], dtype: torch.dtype, runner: Path | None = None) -> Any:
    """On two fresh sets of inputs, which lie on the GPU or on the host."""
    args, kwargs = make()
    dynamo.package(model, args, folder, kwargs)
    loaded = dynamo.load_package(folder)
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for _ in range(2):
        args, kwargs = make()
        with torch.no_grad():
            wanted = tensors_in(model(*args, **kwargs))
        found = tensors_in(loaded(*args, **kwargs))
        assert all(tensor.device.type == "cuda" for tensor in found)
        torch.testing.assert_close(found, wanted, **near)
        on_host = [tensor.cpu() for tensor in tensors_in((args, kwargs))]
        torch.testing.assert_close(loaded.run(on_host), [tensor.cpu() for tensor in wanted], **near)
        if runner is not None:
            given, got = folder.with_suffix(".in"), folder.with_suffix(".out")
            write_tensors(given, on_host)
            path = os.environ.get("LD_LIBRARY_PATH", "")
            done = subprocess.run(["env", "-i", f"LD_LIBRARY_PATH={path}", str(runner), str(folder), str(given), str(got)],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            torch.testing.assert_close(read_tensors(got), [tensor.cpu() for tensor in wanted], **near)
    return loaded


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_an_mlp(tmp_path: Path, dtype: torch.dtype, runner: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 10),
        torch.nn.Softmax(-1)).eval().to(DEVICE, dtype)
    check(tmp_path / "mlp", model, lambda: ((torch.randn(33, 256, device=DEVICE, dtype=dtype),), {}), dtype, runner)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_small_transformers(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    def make() -> Args:
        mask = torch.ones(2, 12, dtype=torch.int64, device=DEVICE)
        mask[1, int(torch.randint(4, 12, ())):] = 0
        more = {"attention_mask": mask} if name == "bert" else {}
        return (), {"input_ids": torch.randint(0, 50, (2, 12), device=DEVICE), **more}

    check(tmp_path / name, small_model(name).to(DEVICE, dtype), make, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_convolutions(tmp_path: Path, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=2, padding=3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1, groups=4), torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(64, 10)).eval().to(DEVICE, dtype)
    check(tmp_path / "images", model, lambda: ((torch.randn(2, 3, 64, 64, device=DEVICE, dtype=dtype),), {}), dtype)


def test_memory_of_results_is_used_again(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64).eval().to(DEVICE)
    loaded = check(tmp_path / "linear", model, lambda: ((torch.randn(8, 64, device=DEVICE),), {}), torch.float32)
    x = torch.randn(8, 64, device=DEVICE)
    first = loaded(x)
    other = loaded(x + 1)
    assert first.data_ptr() != other.data_ptr()
    torch.testing.assert_close(first, model(x), rtol=1e-3, atol=1e-3)
    place = first.data_ptr()
    del first
    assert loaded(x).data_ptr() == place


def test_streams_and_odd_addresses(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval().to(DEVICE)
    dynamo.package(model, (torch.randn(8, 64, device=DEVICE),), tmp_path / "linear")
    loaded = dynamo.load_package(tmp_path / "linear")
    x = torch.randn(8 * 64 + 1, device=DEVICE)[1:].view(8, 64)  # no multiple of 16 bytes
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-3, atol=1e-3)
    found = []
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(loaded(x) * 2)
    torch.cuda.synchronize()
    for result in found:
        torch.testing.assert_close(result, model(x) * 2, rtol=1e-3, atol=1e-3)


def test_what_is_written_and_returned(tmp_path: Path) -> None:
    def put(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> Any:
        cache[at] = x * 2
        return cache.sum(-1), cache, cache[1:]

    def make() -> tuple[torch.Tensor, ...]:
        return torch.randn(2, 6, device=DEVICE), torch.randn(5, 6, device=DEVICE), torch.randperm(5, device=DEVICE)[:2]

    dynamo.package(put, make(), tmp_path / "cache")
    loaded = dynamo.load_package(tmp_path / "cache")
    given = make()
    other = [tensor.clone() for tensor in given]
    sums, same, part = loaded(*given)
    torch.testing.assert_close(sums, put(*other)[0])
    assert same is given[1] and part.data_ptr() == given[1][1:].data_ptr()
    torch.testing.assert_close(list(given), other)


def test_another_kind_of_gpu_is_refused(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    kind = "sm_80" if (major, minor) != (8, 0) else "sm_90"
    dynamo.package(torch.nn.ReLU(), (torch.ones(4),), tmp_path / "relu", target=kind)
    with pytest.raises(dynamo.exc.LoadError, match=f"compiled for GPUs of kind {kind}, this is .*sm_{major}{minor}"):
        dynamo.load_package(tmp_path / "relu")
