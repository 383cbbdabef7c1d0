"""What printed kernels do, by Triton's PTX for a GPU that is not here: how many bytes each instruction moves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from triton_reference import load_module

from inductor.codegen.triton.print_kernel import MODULE_HEAD, TritonSource, print_kernel
from inductor.config import config
from inductor.fx_passes.pipeline import rewritten
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

DEVICE = torch.device("cuda", 0)
POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.bool: "*i1", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv", torch.float8_e5m2: "*fp8e5",
}
WIDE = 8  # bytes of a thread at a time
PARAMETER = re.compile(r"ld\.param\.b64\s+(%rd\d+), \[\w+_param_(\d+)\]")
# Registers of 64 bits, which hold addresses: what is computed from what.
STEP = re.compile(r"^(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(%rd\d+), (.*);")
ACCESS = re.compile(r"\b(?:ld|st)\.(\S*global\S*)\s+(.*?);")
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global\s+\[[^\]]*\],\s*\[\s*(%rd\d+)[^\]]*\],\s*(\w+)")


def kernels_of(
    program: Callable[..., Any], inputs: Sequence[Any], capture: Callable[..., Any]
) -> Iterator[tuple[TritonSource, Mapping[str, tuple[torch.dtype, int]]]]:
    """Printed functions, and for each of their buffers the dtype and the number of elements."""
    with config.patch(gpu="sm_90"):
        graph = lower_graph(rewritten(capture(program, inputs, mode="fake"))).graph
        layouts = {name: replace(layout, device=DEVICE) for name, layout in graph.layouts().items()}
        for kernel in schedule_graph(replace(graph, device=DEVICE), 8).kernels():
            printed = print_kernel(kernel, layouts)
            buffers = {name: (one.dtype, one.storage_elements()) for name, one in layouts.items()}
            buffers |= {one.name: (one.dtype, one.elements) for one in printed.scratch}
            for source in printed.sources:
                yield source, buffers


def ptx_of(source: TritonSource, dtypes: Mapping[str, torch.dtype], folder: Path) -> str:
    """The PTX of a function with its first config, for buffers that begin at 16 bytes."""
    return str(compiled(source, dtypes, folder).asm["ptx"])


def compiled(source: TritonSource, dtypes: Mapping[str, torch.dtype], folder: Path) -> Any:
    """What Triton makes of a function with its first config, for an H100 or H200."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load_module(f"{MODULE_HEAD}\n\n{source.text}", folder), source.name)
    chosen = source.choices.classes[0].configs[0]
    names = zip(function.arg_names, source.parameters, strict=False)
    constants: dict[str, Any] = {"XBLOCK": chosen.rows, "RBLOCK": chosen.columns}
    constants |= {"IS_EVEN": source.likely_even} if source.even else {}
    what = ASTSource(
        fn=function, constexprs=constants,
        signature={own: POINTERS[dtypes[name]] for own, name in names}
        | {number.name: number.kind for number in source.numbers}
        | dict.fromkeys(constants, "constexpr"),
        attrs={(n,): [["tt.divisibility", 16]] for n in range(len(source.parameters))},
    )
    options = {
        "num_warps": chosen.warps, "debug": source.may_fail, "sanitize_overflow": False,
        "enable_fp_fusion": False,
    }
    return triton.compile(what, target=GPUTarget("cuda", 90, 32), options=options)


def accesses(text: str) -> list[Counter[int]]:
    """For each parameter how many instructions move how many bytes of a thread."""
    found: dict[str, set[int]] = {}
    steps = []
    for line in map(str.strip, text.splitlines()):
        if known := PARAMETER.match(line):
            found[known[1]] = {int(known[2])}
        elif "global" not in line and (step := STEP.match(line)):
            steps.append((step[1], re.findall(r"%rd\d+", step[2])))
    changed = True
    while changed:
        changed = False
        for result, given in steps:
            reached = set[int]().union(*(found.get(each, ()) for each in (result, *given)))
            changed |= reached != found.get(result, set())
            found[result] = reached
    count = max((n for each in found.values() for n in each), default=-1) + 1
    counted: list[Counter[int]] = [Counter() for _ in range(count)]
    for access in ACCESS.finditer(text):
        address = re.search(r"\[\s*(%rd\d+)", access[2])
        for n in found.get(address[1], ()) if address else ():
            counted[n][_bytes(access[1])] += 1
    for copy in COPY.finditer(text):
        for n in found.get(copy[1], ()):
            counted[n][int(copy[2], 0)] += 1
    return counted


def _bytes(suffix: str) -> int:
    """Those of `global.v4.b32`."""
    parts = suffix.split(".")
    lanes = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
    return lanes * int(re.sub(r"\D", "", parts[-1])) // 8


def narrow_share(counts: Counter[int]) -> float:
    """Of the bytes that instructions move, those moved less than `WIDE` at a time."""
    total = sum(size * count for size, count in counts.items())
    narrow = sum(size * count for size, count in counts.items() if size < WIDE)
    return narrow / total if total else 0.0
