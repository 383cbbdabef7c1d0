"""The wheel is whole: in a new environment, from an empty folder, it compiles a model with what it declares."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.install.environments import PACKAGES, PROGRAM, ROOT, only, run

SOURCES = (*PACKAGES, "build_backend", "pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in", "README.md", "LICENSE", "Makefile")
DATA = ("dynamo/reporting/page.html", "dynamo/reporting/style.css", "inductor/package/cpp/model.h",
        "inductor/package/cpp/runtime.cpp")
HEADERS = ("dynamo/csrc/hook.h", "inductor/runtime/csrc/launcher.h", "build_backend/dynamo_build.py")
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has: nothing that was built here."""
    folder = tmp_path_factory.mktemp("source")
    without = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=without)
        else:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def sources(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", folder, folder=source)
    [made] = folder.glob("dynamo_jit-*.tar.gz")
    return made


@pytest.fixture(scope="module", params=["g++", "clang++"])
def wheel(request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the source distribution, by pip's isolation: the torch that lies here is found through it."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    tools = {} if request.param == "g++" else {"PATH": only(folder / "tools", "clang++", "ld")}
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sources, folder=folder, DYNAMO_BUILD_KERNELS="0", **tools)
    [made] = folder.glob("dynamo_jit-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it needs is read from the one of the tests, whose own dynamo is not."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", packages, wheel, folder=folder)
    assert {path.name for path in packages.iterdir() if path.suffix != ".dist-info"} == PACKAGES
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert set(DATA) <= set(names)
    assert len([name for name in names if name.endswith(".so")]) == 3
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
    said = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "Requires-Dist: numpy" in said and "Classifier: Programming Language :: Python :: 3.12" in said


def test_a_model_is_compiled_from_an_empty_folder(python: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    run(python, "-c", PROGRAM, folder=empty, DYNAMO_CACHE_DIR=str(tmp_path / "cache"))


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_clang_is_enough(python: Path, tmp_path: Path) -> None:
    tools = only(tmp_path / "tools", "clang++", "ld")
    run(python, "-c", PROGRAM, folder=tmp_path, DYNAMO_CACHE_DIR=str(tmp_path / "cache"), PATH=tools)


def test_the_doctor(python: Path, tmp_path: Path) -> None:
    said = run(python, "-m", "dynamo.doctor", folder=tmp_path, DYNAMO_CACHE_DIR=str(tmp_path / "cache"))
    assert "C++ compiler" in said and "OpenMP" in said


def test_another_torch_is_one_sentence(python: Path, tmp_path: Path) -> None:
    program = "import torch; torch.__version__ = '2.99.0'; import dynamo"
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: dynamo-jit: the extension dynamo._C was built against torch") and "2.99.0" in last
    assert "pip install --force-reinstall" in last


def test_what_is_in_the_source_distribution(sources: Path) -> None:
    names = {name.partition("/")[2] for name in tarfile.open(sources).getnames()}
    assert {*DATA, *HEADERS, "LICENSE", "setup.py"} <= names
    for folder in ("dynamo/csrc", "inductor/runtime/csrc", "dynamo/lazy/csrc"):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir() if path.is_file()} <= names
