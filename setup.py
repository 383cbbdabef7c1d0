"""Builds the three C++ extensions against the installed torch; all else is in pyproject.toml.

`dynamo._C` is the frame hook and the guard program (needs c10, and torch for ranges of profilers);
`inductor.runtime._launch` calls compiled graphs and `lazy._C` follows recorded traces (both need
libtorch_python). Then it builds the libraries of the compiler's own kernels for this processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def fail(sentence: str) -> None:
    sys.exit(f"dynamo-jit: {sentence}")


if not (shutil.which("c++") or shutil.which("g++")):
    fail("no C++ compiler found; install one (Debian: apt-get install g++) and try again.")
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    fail("Python.h is missing; install Python's headers (Debian: apt-get install python3-dev).")
try:
    import torch
except ImportError:
    fail("torch must be installed first (pip install torch==2.13.0), then: "
         "pip install --no-build-isolation -e .")

ROOT = os.path.dirname(torch.__file__)
INCLUDE = [os.path.join(ROOT, "include"), os.path.join(ROOT, "include/torch/csrc/api/include")]
LIB = os.path.join(ROOT, "lib")
with open(os.path.join(ROOT, "include/torch/csrc/autograd/python_variable.h")) as header:
    OWNED = ["-DTENSOR_OWNED"] if "at::Tensor cdata;" in header.read() else []
# Python's own flags ask for debug information, a third of the build's time.
CXX = [*OWNED, "-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-w",
       f'-DDYNAMO_TORCH_VERSION="{torch.__version__}"']


def extension(name: str, folder: str, libraries: list[str]) -> list[Extension]:
    sources = sorted(glob(f"{folder}/*.c") + glob(f"{folder}/*.cpp"))
    if not sources:
        return []
    return [Extension(name, sources, include_dirs=INCLUDE, library_dirs=[LIB],
                      libraries=libraries, runtime_library_dirs=[LIB],
                      depends=glob(f"{folder}/*.h"), extra_compile_args=CXX)]


class SideBySide(build_ext):
    """Compiles the files of an extension at the same time, one on each core."""

    def build_extensions(self) -> None:
        compile_in_turn = self.compiler.compile

        def compile_all(sources: list[str], **how: Any) -> list[str]:
            for source in sources:  # two threads would make one folder
                os.makedirs(os.path.join(self.build_temp, os.path.dirname(source)), exist_ok=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_in_turn([source], **how), sources)
                return [file for files in made for file in files]

        self.compiler.compile = compile_all
        super().build_extensions()

    def run(self) -> None:
        super().run()
        self.build_libraries()

    def build_libraries(self) -> None:
        """What fails here is built at its first use."""
        root = os.path.abspath("." if self.inplace else self.build_lib)
        folder = os.path.join(root, "inductor", "runtime", "libraries")
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run([sys.executable, "-m", "inductor.shipped_libraries", folder],
                              cwd=root, env={**os.environ, "PYTHONPATH": path})
        if done.returncode:
            print("dynamo-jit: the kernels are built at their first use", file=sys.stderr)


PYTHON = ["c10", "torch", "torch_cpu", "torch_python"]
setup(cmdclass={"build_ext": SideBySide},
      ext_modules=extension("dynamo._C", "dynamo/csrc", ["c10", "torch_cpu"])
      + extension("inductor.runtime._launch", "inductor/runtime/csrc", PYTHON)
      + extension("lazy._C", "lazy/csrc", PYTHON))
