"""Builds the three C++ extensions against torch's headers; all else is in pyproject.toml.

`dynamo._C` is the frame hook and the guard program (needs c10, and torch for ranges of profilers);
`inductor.runtime._launch` calls compiled graphs and `dynamo.lazy._C` follows recorded traces (both
need libtorch_python). Torch's headers take a compiler ten times as long as our code: the files of
an extension that include them are compiled as one. Then it builds the libraries of the compiler's
own kernels for this processor, unless DYNAMO_BUILD_KERNELS is 0, as for wheels that other machines
get.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "build_backend"))
from dynamo_build import Torch, find_torch, required  # noqa: E402

CXX_ONLY = "-std=c++20"
# Python's own flags ask for debug information, a third of the build's time.
FLAGS = ["-O2", "-g0", CXX_ONLY, "-fvisibility=hidden", "-w"]
OF_TORCH = re.compile(r"#include <(ATen|c10|torch)/")
OWN = re.compile(r'#include "(.+)"')


def fail(sentence: str) -> None:
    sys.exit(f"dynamo-jit: {sentence}")


def torch_here() -> Torch:
    found = find_torch()
    if found is None:
        fail(f"{required()} must be installed first, where pip does not do that itself "
             "(--no-build-isolation).")
    return found


def compiler() -> str:
    return (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()[0]


def take_compiler() -> None:
    """clang where Python's own compilers are not there; clang++ alone is enough."""
    for variable, names in (("CC", ("clang", "clang++")), ("CXX", ("clang++",))):
        usual = (os.environ.get(variable) or sysconfig.get_config_var(variable) or "").split()
        clang = next(filter(shutil.which, names), None)
        if clang is not None and not (usual and shutil.which(usual[0])):
            os.environ[variable] = clang
    if not shutil.which(compiler()):
        fail("no C++ compiler found; install one (Debian: apt-get install g++, or clang) and try "
             "again.")
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        fail("Python.h is missing; install Python's headers (Debian: apt-get install python3-dev).")


def extension(name: str, folder: str, libraries: list[str]) -> Extension:
    sources = sorted(glob(f"{folder}/*.c") + glob(f"{folder}/*.cpp"))
    return Extension(name, sources, libraries=libraries, depends=glob(f"{folder}/*.h"),
                     extra_compile_args=FLAGS)


def includes_torch(source: Path) -> bool:
    text = source.read_text()
    headers = (source.parent / name for name in OWN.findall(text))
    return any(OF_TORCH.search(each) for each in (text, *(one.read_text() for one in headers)))


class SideBySide(build_ext):
    """Compiles extensions, and the files of each, at the same time."""

    def run(self) -> None:
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            fail("a Python with a global interpreter lock is needed, not a free-threaded build.")
        take_compiler()
        self.torch = torch_here()
        self._build_all_for_others()
        super().run()
        self.build_libraries()

    def _build_all_for_others(self) -> None:
        """Where the last build here was for another torch, or by another compiler."""
        stamp, now = Path(self.build_temp) / "torch", f"{self.torch.version} {compiler()}"
        if not stamp.exists() or stamp.read_text() != now:
            self.force = True
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(now)

    def build_extensions(self) -> None:
        folder, version = self.torch
        for one in self.extensions:
            one.include_dirs += [f"{folder}/include", f"{folder}/include/torch/csrc/api/include"]
            one.library_dirs.append(f"{folder}/lib")
            # Of the torch beside the package, if not that of the process is taken.
            up = "/".join([".."] * one.name.count("."))
            one.runtime_library_dirs.append(f"$ORIGIN/{up}/torch/lib")
            one.define_macros.append(("DYNAMO_TORCH_VERSION", f'"{version}"'))
            variable = folder / "include/torch/csrc/autograd/python_variable.h"
            if "at::Tensor cdata;" in variable.read_text():
                one.define_macros.append(("TENSOR_OWNED", None))
        compile_in_turn = self.compiler.compile

        def compile_one(source: str, extra_postargs: list[str], **how: Any) -> list[str]:
            flags = [flag for flag in extra_postargs if source.endswith(".cpp") or flag != CXX_ONLY]
            # clang++ may be all there is, and it would read a file of C as C++.
            language = ["-x", "c"] if source.endswith(".c") else []
            return compile_in_turn([source], extra_preargs=language, extra_postargs=flags, **how)

        def compile_all(sources: list[str], **how: Any) -> list[str]:
            units = self._join(sources)
            for source in units:  # two threads would make one folder
                os.makedirs(os.path.join(self.build_temp, os.path.dirname(source)), exist_ok=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_one(source, **how), units)
                return [file for files in made for file in files]

        self.compiler.compile = compile_all
        self.parallel = len(self.extensions)
        super().build_extensions()

    def _join(self, sources: list[str]) -> list[str]:
        """One file in the place of those that include torch's headers; it comes first, for it takes
        longest."""
        joined = [Path(source).resolve() for source in sources if includes_torch(Path(source))]
        unit = Path(self.build_temp, os.path.dirname(sources[0]), "with_torch.cpp")
        unit.parent.mkdir(parents=True, exist_ok=True)
        # Before the first of them includes Python.h.
        lines = "#define PY_SSIZE_T_CLEAN\n", *(f'#include "{source}"\n' for source in joined)
        unit.write_text("".join(lines))
        rest = [source for source in sources if Path(source).resolve() not in joined]
        return [str(unit), *rest]

    def build_libraries(self) -> None:
        """What fails here is built at its first use."""
        root = os.path.abspath("." if self.inplace else self.build_lib)
        folder = os.path.join(root, "inductor", "runtime", "libraries")
        if os.environ.get("DYNAMO_BUILD_KERNELS", "1") == "0":
            shutil.rmtree(folder, ignore_errors=True)
            return
        given = filter(None, [os.environ.get("PYTHONPATH")])
        beside = [] if find_spec("torch") else [str(self.torch.folder.parent)]
        path = os.pathsep.join([root, *given, *beside])
        done = subprocess.run([sys.executable, "-m", "inductor.driver.shipped_libraries", folder],
                              cwd=root, env={**os.environ, "PYTHONPATH": path})
        if done.returncode:
            print("dynamo-jit: the kernels are built at their first use", file=sys.stderr)


PYTHON = ["c10", "torch", "torch_cpu", "torch_python"]
setup(cmdclass={"build_ext": SideBySide},
      ext_modules=[extension("dynamo._C", "dynamo/csrc", ["c10", "torch_cpu"]),
                   extension("inductor.runtime._launch", "inductor/runtime/csrc", PYTHON),
                   extension("dynamo.lazy._C", "dynamo/lazy/csrc", PYTHON)])
