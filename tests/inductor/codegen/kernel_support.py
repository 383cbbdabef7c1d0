"""Run a `Kernel` twice: compiled, through ctypes, and by the interpreter of loop bodies."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from dynamo.store.content import Store
from dynamo.store.toolchain import Toolchain, find_toolchain
from inductor.codegen.cpp.kernel import print_kernel
from inductor.codegen.cpp.unit import print_unit
from inductor.ir.body import LoopBody
from inductor.ir.graph import Layout
from inductor.ir.interpret import _EVALUATORS, _BodyState, _evaluate_plain
from inductor.runtime.build import build_library
from inductor.scheduler.schedule import Kernel

Storages = dict[str, torch.Tensor]
POINTERS = 8  # fields of struct Runtime


class Runner:
    """Compiles kernels into a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        found = find_toolchain(self.store)
        assert isinstance(found, Toolchain), found
        self.toolchain = found

    def compile(self, kernel: Kernel, storages: Mapping[str, torch.Tensor], threads: int = 2):
        (run,) = self.compile_all([(kernel, storages)], threads)
        return run

    def compile_all(self, pairs, threads: int = 2):
        """One library for many kernels (their names must differ)."""
        sources = [print_kernel(k, layouts_of(s), threads) for k, s in pairs]
        tail = "\n".join(
            f'extern "C" __attribute__((visibility("default"))) int run_{s.name}'
            f"({', '.join(['Runtime* rt', *(f'i64 {k}' for k in s.symbols)])}) "
            f"{{ return {s.name}({', '.join(['rt', *casts(s.types), *s.symbols])}); }}"
            for s in sources
        )
        text = print_unit(sources, tail)
        library = ctypes.CDLL(str(build_library([text], self.toolchain, self.store).path))
        return [Compiled(library, source) for source in sources]


class Compiled:
    def __init__(self, library, source) -> None:
        self.function = getattr(library, f"run_{source.name}")
        self.source = source
        self.library = library

    def __call__(self, storages: Storages, *sizes: int) -> tuple[int, list[int]]:
        """(what it returned, [error code, value, bound]); sizes: of the kernel's symbols"""
        names = self.source.parameters
        data = (ctypes.c_void_p * max(len(names), 1))(*(storages[n].data_ptr() for n in names))
        runtime = (ctypes.c_int64 * POINTERS)()
        runtime[0] = ctypes.addressof(data)
        code = self.function(ctypes.byref(runtime), *map(ctypes.c_int64, sizes))
        return code, list(runtime[4:7])


def casts(types: tuple[str, ...]) -> list[str]:
    return [f"({t.replace(' __restrict__', '')})rt->data[{n}]" for n, t in enumerate(types)]


def layouts_of(storages: Mapping[str, torch.Tensor]) -> dict[str, Layout]:
    return {
        name: Layout(t.device, t.dtype, tuple(t.shape), tuple(t.stride()))
        for name, t in storages.items()
    }


def interpret_kernel(kernel: Kernel, storages: Storages) -> None:
    """What the kernel means: outer loops around the stages, one iteration after the other."""
    for values in itertools.product(*map(range, kernel.outer)):
        memory = dict(storages)
        for local in kernel.locals:
            memory[local.name] = torch.zeros(local.elements, dtype=local.dtype)
        for stage in kernel.stages:
            interpret_stage(fix_outer(stage, values), memory)


def interpret_stage(body: LoopBody, storages: Storages) -> None:
    """As `interpret_body`; stores may also stand inside of the reduction loops.

    A store that names a variable of a reduction is inside of all of them: one that adds does so
    for each of their elements.
    """
    extents = body.ranges + body.reduction_ranges
    if 0 in body.ranges:
        return
    values: dict[str, object] = {}
    for axis, extent in enumerate(extents):
        shape = [1] * len(extents)
        shape[axis] = extent
        inner = axis - len(body.ranges)
        values[f"i{axis}" if inner < 0 else f"r{inner}"] = torch.arange(extent).reshape(shape)
    state = _BodyState(body, storages, values, extents)
    evaluators = {**_EVALUATORS, "store": _store}
    for op in body.ops:
        state.results.append(evaluators.get(op.name, _evaluate_plain)(state, op))


def _store(state: _BodyState, op) -> None:
    value, position = torch.broadcast_tensors(state.args(op)[0], state.position(op.index))
    outer, inner = state.body.ranges, state.body.reduction_ranges
    inside = any(size > 1 for size in value.shape[len(outer) :])
    shape = (*outer, *(inner if inside else (1 for _ in inner)))
    value, position = value.broadcast_to(shape).reshape(-1), position.broadcast_to(shape).reshape(-1)
    storage = state.storages[op.buffer]
    assert storage.dtype is op.dtype, op
    storage.index_put_((position,), value, accumulate=op.imm == "add")


def fix_outer(stage: LoopBody, values: tuple[int, ...]) -> LoopBody:
    known = {f"o{n}": value for n, value in enumerate(values)}
    ops = tuple(
        op if op.index is None else replace(op, index=op.index.substitute(known))
        for op in stage.ops
    )
    return replace(stage, ops=ops)


def check(runner: Runner, kernel: Kernel, storages: Storages, threads: int = 2, **tolerance):
    """Compiled and interpreted results are the same."""
    ours = {name: t.clone() for name, t in storages.items()}
    want = {name: t.clone() for name, t in storages.items()}
    compiled = runner.compile(kernel, storages, threads)
    code, _ = compiled(ours)
    assert code == 0
    interpret_kernel(kernel, want)
    for name in kernel.writes():
        torch.testing.assert_close(ours[name], want[name], equal_nan=True, **tolerance)
    return compiled
