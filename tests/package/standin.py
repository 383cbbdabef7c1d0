"""A stand-in for CUDA's driver, for tests of packages: see `libcuda.cpp`.

Kernels are not compiled; a launch may run them in Triton's interpreter, where that is there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inductor.package.gpu_kernels import Binary, Function

SOURCE = Path(__file__).with_name("libcuda.cpp")
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 5, ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong), ctypes.c_int)
DTYPES = {
    "*fp16": torch.float16, "*bf16": torch.bfloat16, "*fp32": torch.float32, "*fp64": torch.float64, "*i1": torch.bool,
    "*i8": torch.int8, "*i16": torch.int16, "*i32": torch.int32, "*i64": torch.int64, "*u8": torch.uint8,
}
PLENTY = 1 << 40


def build(folder: Path) -> Path:
    """The library; programs find it by LD_LIBRARY_PATH, this process once it is loaded."""
    path = folder / "libcuda.so.1"
    subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
                    "-Wl,-soname,libcuda.so.1", str(SOURCE), "-o", str(path)], check=True)
    return path


class Standin:
    """functions: of packages that were made, by the names that launches have."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.library.standin_log.restype = ctypes.c_char_p
        self.library.standin_live.restype = self.library.standin_room.restype = ctypes.c_size_t
        self.library.standin_room.argtypes = [ctypes.c_ulonglong]
        self.library.standin_set.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
        self.functions: dict[str, Function] = {}
        self.modules: dict[str, Any] = {}
        self.errors: list[BaseException] = []
        self.log()

    def compile_functions(self, functions: Sequence[Function], capability: int, workers: int) -> dict[Function, Binary]:
        """In the place of Triton: a cubin is a name, which ends in the number of addresses."""
        found = {}
        for one in functions:
            name = f"{one.name}_{len(self.functions)}_{len(one.pointers)}"
            self.functions[name] = one
            found[one] = Binary(name, name.encode() + b"\0", 32 * dict(one.options)["num_warps"], 1024)
        return found

    def log(self) -> list[str]:
        """What was asked since the last time."""
        lines = self.library.standin_log().decode().splitlines()
        assert not [line for line in lines if line.startswith("wrong")], lines
        return lines

    def set(self, capability: int = 90, most_bytes: int = PLENTY, fails_after: int = -1) -> None:
        self.library.standin_set(capability, most_bytes, fails_after)

    def live(self) -> int:
        """Bytes that are allocated."""
        return int(self.library.standin_live())

    def interpret(self, folder: Path) -> None:
        """Launches run in Triton's interpreter from now on."""

        def run(name: bytes, x: int, y: int, z: int, threads: int, shared: int, stream: Any, at: Any, count: int) -> int:
            try:
                one = self.functions[name.decode()]
                tensors = [self.memory(at[n], DTYPES[kind]) for n, kind in enumerate(one.pointers)]
                function = getattr(self.module(one.text, folder), one.name)
                known = dict(one.constants)
                function[(x, y, z)](*tensors, **{n: known[n] for n in function.arg_names if n in known})
            except BaseException as error:  # a callback of C can't raise
                self.errors.append(error)
                return 1
            return 0

        self.callback = RUN(run)  # lives as long as it may be called
        self.library.standin_run(self.callback)

    def memory(self, at: int, dtype: torch.dtype) -> torch.Tensor:
        """From an address to the end of its block."""
        count = int(self.library.standin_room(at)) // dtype.itemsize
        return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(at), dtype=dtype)

    def module(self, text: str, folder: Path) -> Any:
        if text not in self.modules:
            path = folder / f"kernels_{len(self.modules)}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            self.modules[text] = module
        return self.modules[text]
