"""Triton functions of a package, compiled ahead for one kind of GPU.

In: texts of Triton functions with their constants, and who launches them with what. Out: cubins.
No GPU is needed.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamo.aot.records import Unsupported
from dynamo.base.waiting import in_threads
from inductor.ir.gpus import MOST_SHARED as MOST_SHARED
from inductor.ir.gpus import most_shared
from inductor.ir.graph import ViewRef
from inductor.runtime.binaries import Binary
from inductor.runtime.modules import import_file
from inductor.runtime.ptx import OPTIONS, install_unpacking

WARP = 32
ALIGNED = 16  # bytes; the runtime gives kernels buffers at such addresses
POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.bool: "*i1", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """The address of a buffer, or of an element in it."""

    buffer: str
    offset: int  # bytes
    dtype: torch.dtype

    @staticmethod
    def of(view: ViewRef) -> Operand:
        return Operand(view.buffer, view.offset * view.dtype.itemsize, view.dtype)


@dataclass(frozen=True, slots=True)
class Function:
    """A Triton function with its constants: what becomes one cubin.

    text: of the module. pointers: Triton's types of its operands; aligned: which of them lie at
    multiples of 16 bytes. options: of the compiler.
    """

    text: str
    name: str
    pointers: tuple[str, ...]
    aligned: tuple[bool, ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(
        text: str, name: str, operands: Sequence[Operand], constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Function:
        """Errors: Unsupported for a dtype of which Triton has no pointers."""
        for operand in operands:
            if operand.dtype not in POINTERS:
                raise Unsupported(f"Triton knows no tensors of {operand.dtype}")
        return Function(
            text, name, tuple(POINTERS[operand.dtype] for operand in operands),
            tuple(operand.offset % ALIGNED == 0 for operand in operands),
            tuple(sorted(constants.items())), tuple(sorted(options.items())))


@dataclass(frozen=True, slots=True)
class Launch:
    """A function, its grid and its operands."""

    function: Function
    grid: tuple[int, int, int]
    operands: tuple[Operand, ...]


def compile_functions(
    functions: Sequence[Function], capability: int, workers: int
) -> dict[Function, Binary]:
    """The cubin of each, several at a time. Errors: Unsupported where Triton fails with one."""
    with tempfile.TemporaryDirectory() as name:
        modules = {text: _module(text, Path(name)) for text in {one.text for one in functions}}
        install_unpacking()
        try:
            binaries = in_threads(
                lambda one: _compiled(one, modules[one.text], capability), functions, workers)
            return dict(zip(functions, binaries, strict=True))
        finally:
            for module in modules.values():
                sys.modules.pop(module.__name__, None)


def _module(text: str, folder: Path) -> Any:
    """The module of that text; Triton wants to find its source."""
    name = f"packaged_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = folder / f"{name}.py"
    path.write_text(text)
    return import_file(name, path)


def _compiled(one: Function, module: Any, capability: int) -> Binary:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(module, one.name)
    given = dict(one.constants)
    constants = {name: given[name] for name in function.arg_names if name in given}
    names = [name for name in function.arg_names if name not in constants]
    signature = dict(zip(names, one.pointers, strict=True))
    places = [at for at, name in enumerate(function.arg_names) if name in signature]
    source = ASTSource(
        fn=function, signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(place,): [["tt.divisibility", ALIGNED]]
               for place, aligned in zip(places, one.aligned, strict=True) if aligned})
    options = {**dict(one.options), "ptx_options": OPTIONS}
    try:
        made = triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)
    except Exception as error:
        raise Unsupported(
            f"Triton can't compile {one.name} ({type(error).__name__}: {error})") from error
    facts = made.metadata
    special = [name for name in ("global_scratch_size", "profile_scratch_size", "launch_pdl",
                                 "launch_cooperative_grid") if getattr(facts, name, 0)]
    if special or getattr(facts, "num_ctas", 1) != 1:
        raise Unsupported(f"{one.name} needs more than addresses to start ({special})")
    if facts.shared > most_shared(capability):
        raise Unsupported(f"{one.name} needs {facts.shared} bytes of shared memory")
    return Binary(made.name, made.asm["cubin"], facts.num_warps * WARP, facts.shared)
