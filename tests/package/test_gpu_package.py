"""Packages for a GPU without one: what the runtime asks of a stand-in for CUDA's driver, and what is refused.

`interpreted_gpu.py` compares results with eager, in Triton's interpreter; `tests/gpu/test_package.py` on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import dynamo
import inductor.package.api
import inductor.package.folder
from dynamo.exc import GuardFailed, LoadError, Unsupported
from tests.package.standin import Standin, build
from tests.package.test_package import HEADERS

HERE = Path(__file__).parent
HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture(scope="session")
def driver_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_file: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    made = Standin(driver_file)
    made.set()
    monkeypatch.setattr(inductor.package.folder, "compile_functions", made.compile_functions)
    monkeypatch.setattr(inductor.package.api, "has_triton", lambda: True)
    return made


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.LayerNorm(40), torch.nn.Linear(40, 3)).eval()


def packaged(folder: Path, model: Any = None, *args: Any, target: str = "sm_90") -> Path:
    given = args or (torch.randn(5, 24),)
    return dynamo.package(mlp() if model is None else model, given, folder / "model", target=target)


def kernels(log: list[str]) -> list[str]:
    return [re.sub(r"_\d+_\d+$", "", line.split()[1]) for line in log if line.startswith("launch")]


def test_a_call_is_copies_launches_and_a_wait(driver: Standin, tmp_path: Path) -> None:
    loaded = dynamo.load_package(packaged(tmp_path))
    first = driver.log()
    weights = sum(-(-p.numel() * 4 // 64) * 64 for p in mlp().parameters())
    assert f"allocate {weights}" in first and f"to device {weights}" in first and not kernels(first)
    result = loaded(torch.randn(5, 24))
    assert result.shape == (5, 3) and result.device.type == "cpu"
    log = driver.log()
    steps = [line.split()[0] for line in log if not line.startswith("allocate")]
    assert steps == ["to", *["launch"] * len(kernels(log)), "to", "wait"]
    assert log[-2:] == ["to host 60", "wait 0"] and "to device 480" in log
    assert len(kernels(log)) == len(driver.functions) == 3, log
    assert [word in name for word, name in zip(("addmm", "layer_norm", "addmm"), kernels(log))] == [True] * 3
    for line in log:
        if line.startswith("launch"):
            name = line.split()[1]
            wide = re.search(r"(\d+)x(\d+)x(\d+) of (\d+), 1024 shared", line)
            assert wide is not None and int(wide[4]) == 32 * dict(driver.functions[name].options)["num_warps"]
    loaded(torch.randn(5, 24))
    assert not [line for line in driver.log() if line.startswith(("allocate", "free"))]  # all memory is used again
    del loaded, result
    assert driver.live() == 0 and driver.library.standin_retained() == 0


def test_memory_of_results_that_live(driver: Standin, tmp_path: Path) -> None:
    loaded = dynamo.load_package(packaged(tmp_path))
    results = [loaded(torch.randn(5, 24)) for _ in range(3)]
    assert len({result.data_ptr() for result in results}) == 3
    del loaded  # results keep the model, whose weights they may be
    assert driver.live() > 0 and all(result.sum() is not None for result in results)
    del results
    assert driver.live() == 0


def test_calls_from_threads(driver: Standin, tmp_path: Path) -> None:
    loaded = dynamo.load_package(packaged(tmp_path))
    errors: list[BaseException] = []

    def call(model: Any) -> None:
        try:
            for _ in range(20):
                model(torch.randn(5, 24))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(loaded,)) for _ in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert not errors and len(kernels(driver.log())) == 4 * 20 * 3
    del loaded
    assert driver.live() == 0


def test_intermediate_results_share_memory(driver: Standin, tmp_path: Path) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x.softmax(0) @ x
        return x

    loaded = dynamo.load_package(packaged(tmp_path, chain, torch.randn(64, 64)))
    driver.log()
    loaded(torch.randn(64, 64))
    arena = [int(line.split()[1]) for line in driver.log() if line.startswith("allocate")]
    assert sum(arena) <= 6 * 64 * 64 * 4, arena  # of eleven intermediate results
    assert loaded.description["target"] == "sm_90"


def test_the_kind_of_gpu_is_checked(driver: Standin, tmp_path: Path) -> None:
    folder = packaged(tmp_path)
    driver.set(capability=80)
    with pytest.raises(LoadError, match='kind sm_90, this is a stand-in, sm_80; package the model with target="sm_80"'):
        dynamo.load_package(folder)
    driver.set()
    assert driver.live() == 0


def test_errors_of_the_driver(driver: Standin, tmp_path: Path) -> None:
    folder = packaged(tmp_path)
    driver.set(most_bytes=100)
    with pytest.raises(LoadError, match="no memory for the weights: CUDA_ERROR_OUT_OF_MEMORY"):
        dynamo.load_package(folder)
    driver.set()
    assert driver.live() == 0
    loaded = dynamo.load_package(folder)
    driver.set(most_bytes=driver.live())
    with pytest.raises(RuntimeError, match="no memory for"):
        loaded(torch.randn(5, 24))
    driver.set(fails_after=1)
    with pytest.raises(RuntimeError, match="an assertion of a kernel failed"):
        loaded(torch.randn(5, 24))
    driver.set()
    loaded(torch.randn(5, 24))
    del loaded
    driver.log()
    assert driver.live() == 0


def test_other_inputs_are_refused(driver: Standin, tmp_path: Path) -> None:
    loaded = dynamo.load_package(packaged(tmp_path))
    driver.log()
    for other in (torch.randn(6, 24), torch.randn(5, 24).half(), torch.randn(24, 5).t(), torch.ones(5, 24, device="meta")):
        with pytest.raises(GuardFailed):
            loaded(other)
    assert not driver.log()


def test_without_a_driver(tmp_path: Path, driver: Standin) -> None:
    folder = packaged(tmp_path)
    code = f"import dynamo\ntry:\n    dynamo.load_package({str(folder)!r})\nexcept dynamo.exc.LoadError as e:\n    print(e)"
    if any(Path(path, "libcuda.so.1").exists() for path in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")):
        pytest.skip("there is one here")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parents[1])
    assert "there is no driver of CUDA here" in done.stdout, done.stderr


def test_a_program_in_cpp(driver: Standin, driver_file: Path, tmp_path: Path) -> None:
    """With inputs on the host and on the device, results here and there; it links nothing but libdl."""

    def put(x: torch.Tensor, cache: torch.Tensor) -> Any:
        cache.mul_(2)
        return cache + x, cache

    folder = packaged(tmp_path, put, torch.randn(4, 8), torch.randn(4, 8))
    program = tmp_path / "on_gpu"
    subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(HEADERS), str(HERE / "on_gpu.cpp"),
                    "-o", str(program), "-ldl"], check=True)
    done = subprocess.run(["env", "-i", f"LD_LIBRARY_PATH={driver_file.parent}", str(program), str(folder)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all is well", done.stdout


@pytest.mark.parametrize(("program", "args", "why"), [
    (lambda x: torch.sort(x)[0] + 1, (torch.randn(8),), "no kernel of ours for aten::sort on a GPU"),
    (lambda x: torch.randn_like(x) + x, (torch.randn(8),), "no kernel of ours for aten::randn_like"),
    (torch.nn.ConvTranspose2d(3, 4, 3), (torch.randn(1, 3, 8, 8),), "no kernel of ours for aten::convolution"),
    (lambda x: torch.linalg.inv(x) + 1, (torch.randn(4, 4),), "on a GPU"),
    (lambda x: torch.fft.fft(x).real, (torch.randn(8),), ""),
])
def test_what_has_no_kernel_is_refused(driver: Standin, tmp_path: Path, program: Any, args: Any, why: str) -> None:
    with pytest.raises(Unsupported) as error:
        packaged(tmp_path, program, *args)
    assert why in str(error.value), error.value
    if not isinstance(program, torch.nn.Module):
        assert "test_gpu_package.py:" in str(error.value)
    assert not (tmp_path / "model").exists()


def test_unknown_targets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='it is "cpu", or a kind of GPU as "sm_90"'):
        packaged(tmp_path, target="cuda")


@pytest.mark.skipif(HAS_TRITON, reason="triton is installed here")
def test_without_triton(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="triton is not installed"):
        packaged(tmp_path)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed here")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_kernels_are_compiled_for_a_gpu_that_is_not_here(tmp_path: Path, target: str) -> None:
    folder = packaged(tmp_path, mlp().half(), torch.randn(5, 24).half(), target=target)
    library = (folder / "libmodel.so").read_bytes()
    assert library.count(b"\x7fELF") >= 4 and target.encode() in library  # three cubins in it
    needed = subprocess.run(["ldd", str(folder / "libmodel.so")], capture_output=True, text=True).stdout
    assert not re.search("cuda|torch|python|gomp", needed), needed
    assert target in (folder / "README.md").read_text()


def test_results_in_tritons_interpreter() -> None:
    triton = pytest.importorskip("triton", reason="triton is not installed here")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4) and triton.__version__.startswith("3.6"):
        pytest.skip("triton 3.6's interpreter takes arrays for numbers, which NumPy 2.4 refuses")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", str(HERE / "interpreted_gpu.py")],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=900, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
