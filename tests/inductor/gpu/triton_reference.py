"""What a `Kernel` means, by the reference interpreter, and how tests run printed kernels."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch

from inductor.codegen.triton.print_kernel import MODULE_HEAD, TritonKernel
from inductor.ir.body import IndirectVar, LoopBody
from inductor.ir.graph import Layout
from inductor.ir.index import constant, variable
from inductor.ir.interpret import interpret_body
from inductor.scheduler.schedule import Kernel

CPU = torch.device("cpu")
_numbers = itertools.count()


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(CPU, tensor.dtype, tuple(tensor.shape), tensor.stride())


def reference(kernel: Kernel, buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The buffers after the kernel. Outer iterations are independent: stage by stage over all."""
    storages = {name: tensor.clone().reshape(-1) for name, tensor in buffers.items()}
    count, row = 1, constant(0)
    for number, extent in enumerate(kernel.outer):
        row = row * extent + variable(f"i{number}", extent)
        count *= extent
    own = {local.name: local for local in kernel.locals}
    for local in kernel.locals:
        storages[local.name] = torch.zeros(local.elements * count, dtype=local.dtype)
    depth = len(kernel.outer)
    for stage in kernel.stages:
        values = {f"i{n}": variable(f"i{n + depth}", e) for n, e in enumerate(stage.ranges)}
        values |= {f"o{n}": variable(f"i{n}", e) for n, e in enumerate(kernel.outer)}
        ops = []
        for op in stage.ops:
            if op.index is not None:
                index = op.index.substitute(values)
                if op.buffer in own:
                    index = index + row * own[op.buffer].elements
                op = replace(op, index=index)
            ops.append(op)
        ranges = (*kernel.outer, *stage.ranges)
        for body in divide(LoopBody(ranges, stage.reduction_ranges, tuple(ops))):
            interpret_body(body, storages)
    return {name: storages[name].reshape(tensor.shape) for name, tensor in buffers.items()}


def divide(body: LoopBody) -> list[LoopBody]:
    """The body without the stores that run for each r, and a body of those without reductions."""
    if not body.reduction_ranges:
        return [body]
    moving, inside = {f"r{n}" for n in range(len(body.reduction_ranges))}, []
    for op in body.ops:
        names = set() if op.index is None else {v.name for v in op.index.variables()}
        runs = op.name != "reduction" and (bool(names & moving) or any(inside[a] for a in op.args))
        if runs and isinstance(op.imm, IndirectVar):
            moving.add(op.imm.var.name)
        inside.append(runs)
    depth = len(body.ranges)
    values = {f"r{n}": variable(f"i{n + depth}", e) for n, e in enumerate(body.reduction_ranges)}
    rest, loop = [], []
    for op, runs in zip(body.ops, inside):
        nothing = replace(op, name="constant", args=(), buffer="", index=None, imm=0)
        late = op.name == "reduction" or (op.name == "store" and not runs)
        moved = op if op.index is None else replace(op, index=op.index.substitute(values))
        loop.append(nothing if late else moved)
        rest.append(nothing if op.name == "store" and runs else op)
    bodies = [LoopBody(body.ranges, body.reduction_ranges, tuple(rest))]
    if any(op.name == "store" for op in loop):
        bodies.append(LoopBody((*body.ranges, *body.reduction_ranges), (), tuple(loop)))
    return bodies


def load_module(text: str, folder: Path):
    """The text as an imported module (Triton wants the source in a file)."""
    name = f"generated_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def module_text(kernel: TritonKernel) -> str:
    return MODULE_HEAD + "".join(f"\n\n{source.text}" for source in kernel.all_sources())


def run(kernel: TritonKernel, buffers: dict[str, torch.Tensor], folder: Path, choice: int = 0):
    """The buffers after running the printed functions (under TRITON_INTERPRET=1)."""
    module = load_module(module_text(kernel), folder)
    state = {name: tensor.clone() for name, tensor in buffers.items()}
    for scratch in kernel.scratch:
        state[scratch.name] = torch.empty(scratch.elements, dtype=scratch.dtype)
    for source in kernel.sources:
        configs = source.choices.all()
        config = configs[min(choice, len(configs) - 1)]
        function = getattr(module, source.name)
        function[source.grid(config)](
            *(state[name] for name in source.parameters),
            XBLOCK=config.rows, RBLOCK=config.columns,
        )
    return {name: state[name] for name in buffers}
