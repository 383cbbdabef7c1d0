"""What is chosen for kernels on a GPU, one line for each question: compared with what was chosen
when each choice was measured on an H200."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inductor.codegen.triton import template_configs, template_likely
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.codegen.triton.template import print_template
from inductor.ir.body import LoopBody, Ops, loop_variables
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.kernels import attention_spec
from inductor.lowering.run import lower_graph
from inductor.scheduler.gemms import as_gemm
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Blocks, Kernel, Part, TemplateKernel

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten
HALF = torch.float16
PROGRAMS: list[tuple[str, Callable[..., Any], tuple[int, ...], torch.dtype]] = [
    ("add", lambda x: x + 1, (1 << 14,), HALF),
    ("add", lambda x: x + 1, (1 << 18,), HALF),
    ("add", lambda x: x + 1, (1 << 24,), torch.float32),
    ("transpose", lambda x: x.t() + x.t().contiguous().sin(), (2048, 4096), HALF),
    ("softmax", lambda x: x.softmax(-1), (4096, 1024), HALF),
    ("softmax", lambda x: x.softmax(-1), (8192, 128256), HALF),
    ("softmax", lambda x: x.softmax(-1), (2048, 50257), torch.float32),
    ("norm", lambda x: nn.functional.layer_norm(x, x.shape[1:]), (16384, 768), HALF),
    ("norm", lambda x: nn.functional.layer_norm(x, x.shape[1:]), (64, 12288), HALF),
    ("sum", lambda x: x.sum(), (1 << 22,), torch.float32),
    ("sum", lambda x: x.sum(1), (16, 1 << 18), HALF),
    ("sum", lambda x: x.sum(1), (300, 4096), HALF),
    ("sum", lambda x: x.sum(1), (600, 4096), HALF),
    ("columns", lambda x: x.sum(0), (8192, 512), HALF),
    ("columns", lambda x: x.sum(0), (512, 20000), HALF),
    ("columns", lambda x: x.sum(0), (4096, 33000), HALF),
    ("argmax", lambda x: x.argmax(1), (8, 128256), HALF),
    ("pool", lambda x: nn.functional.max_pool2d(x, 3, 2, 1), (64, 64, 112, 112), HALF),
]
GEMMS = [
    (m, n, k, parts, dtype) for m, n, k in [
        (1, 4096, 4096), (8, 2048, 5632), (16, 3072, 768), (64, 768, 3072), (300, 512, 512),
        (4096, 3072, 768), (4096, 768, 3072), (16384, 1024, 64), (50000, 48, 24), (1 << 20, 96, 16)]
    for parts, dtype in [(1, HALF), (2, HALF), (1, torch.float32)]
]
CONVOLUTIONS = [(32, 64, 56, 64, 3), (8, 128, 28, 128, 3), (32, 3, 224, 64, 7), (2, 512, 64, 256, 3)]
ATTENTIONS = [
    (2, 8, 8, n, keys, head, causal) for n, keys in [(1, 4096), (8, 2048), (512, 512), (2048, 2048)]
    for head in (32, 64, 96, 128, 256) for causal in (False, True)
]


def spelt(blocks: Any) -> str:
    """Blocks or a config in few letters."""
    if not isinstance(blocks, Blocks):
        return "x".join(str(getattr(blocks, name)) for name in blocks.__dataclass_fields__)
    flags = f"{'p' * blocks.persistent}{'d' * blocks.descriptors}"
    more = f"r{blocks.resident}" if blocks.persistent else ""
    more += f"/{blocks.splits}" if blocks.splits > 1 else ""
    return f"{blocks.rows}x{blocks.columns}x{blocks.depth}x{blocks.warps}x{blocks.stages}{flags}{more}"


def view(name: str, *size: int, turned: bool = False, dtype=HALF) -> tuple[ViewRef, Layout]:
    """A matrix; turned: its first axis is the one that lies densely."""
    stride = (1, size[0]) if turned else (size[1], 1)
    return ViewRef(name, size, stride, 0, dtype), Layout(DEVICE, dtype, size, stride)


def linear(m: int, n: int, k: int, parts: int, dtype: torch.dtype = HALF):
    """GEMMs with weights [n, k], each with its sigmoid where there is one part."""
    x, layout = view("x", m, k, dtype=dtype)
    layouts = {"x": layout}
    made = []
    for number in range(parts):
        w, layouts[f"w{number}"] = view(f"w{number}", k, n, turned=True, dtype=dtype)
        _, result = view(f"y{number}", m, n, dtype=dtype)
        layouts[f"y{number}"] = layouts[f"z{number}"] = result
        gemm = as_gemm(ExternKernel(f"y{number}", result, aten.mm.default, (x, w)), layouts)
        assert gemm is not None
        after = None if parts > 1 else _sigmoid("y0", "z0", m * n, dtype)
        made.append(Part((gemm,), after, (f"y{number}",) if parts > 1 else ()))
    return TemplateKernel("t", tuple(made)), layouts


def _sigmoid(read: str, written: str, count: int, dtype: torch.dtype) -> Kernel:
    ops = Ops()
    (flat,) = loop_variables((count,))
    value = ops.to_dtype(ops.load(read, flat, dtype), torch.float32)
    ops.store(written, flat, ops.to_dtype(ops.sigmoid(value), dtype))
    return Kernel("k", (), (LoopBody((count,), (), tuple(ops.recorded)),))


def convolved(count: int, channels: int, size: int, results: int, window: int, groups: int = 1):
    """Square images in channels last, with the sigmoid of the result."""
    def image(name: str, *sizes: int) -> tuple[ViewRef, Layout]:
        _, c, h, w = sizes
        strides = (h * w * c, 1, w * c, c)
        return ViewRef(name, sizes, strides, 0, HALF), Layout(DEVICE, HALF, sizes, strides)

    pad = window // 2
    x, of_x = image("x", count, channels, size, size)
    w, of_w = image("w", results, channels // groups, window, window)
    _, result = image("y", count, results, size, size)
    layouts = {"x": of_x, "w": of_w, "y": result, "z": result}
    form = ((1, 1), (pad, pad), (1, 1), False, (0, 0), groups)
    gemm = as_gemm(ExternKernel("y", result, aten.convolution.default, (x, w, None, *form)), layouts)
    assert gemm is not None
    part = Part((gemm,), _sigmoid("y", "z", result.numel(), HALF))
    return TemplateKernel("t", (part,)), layouts


def kernels_of(program: Callable[..., Any], size: tuple[int, ...], dtype: torch.dtype):
    """Its kernels and their layouts, on a GPU that need not be here."""
    x = torch.empty(size, dtype=dtype)
    if len(size) == 4:
        x = x.to(memory_format=torch.channels_last)
    graph = lower_graph(capture(program, [x], mode="fake")).graph
    layouts = {name: replace(layout, device=DEVICE) for name, layout in graph.layouts().items()}
    return list(schedule_graph(graph, 8).kernels()), layouts


def choice_lines() -> Iterator[str]:
    """All choices for the present `config.gpu`."""
    for name, program, size, dtype in PROGRAMS:
        kernels, layouts = kernels_of(program, size, dtype)
        for kernel in kernels:
            for source in print_kernel(kernel, layouts).all_sources():
                found = "; ".join(" ".join(map(spelt, each.configs)) for each in source.choices.classes)
                yield f"{name} {'x'.join(map(str, size))}: {source.splits} splits, {found}"
    yield from _of_templates()
    yield from _of_attention()


def _of_templates() -> Iterator[str]:
    templates = [(f"product {m}x{n}x{k} {parts} {dtype}", linear(m, n, k, parts, dtype)) for m, n, k, parts, dtype in GEMMS]
    templates += [(f"convolution {'x'.join(map(str, sizes))}", convolved(*sizes)) for sizes in CONVOLUTIONS]
    for name, (template, layouts) in templates:
        tried = template_configs.candidate_blocks(template)
        near = [template_configs.neighbours(each, template) for each in tried]
        likely = template_likely.likely_blocks(template, layouts)
        yield f"{name}: {' '.join(map(spelt, tried))}"
        yield f"  near: {' '.join(map(spelt, near[0]))}; {sum(map(len, near))} of all"
        grids = [print_template(replace(template, blocks=each), layouts).grid for each in tried]
        yield f"  likely {likely and spelt(likely.blocks)}, grids {' '.join('x'.join(map(str, grid)) for grid in grids)}"
        if likely is not None and likely.epilogues():
            yield "  takes {:.6g} {:.6g}".format(*template_likely.estimates(likely, layouts))


def _of_attention() -> Iterator[str]:
    spec = attention_spec
    for batch, heads, kv, n, keys, head, causal in ATTENTIONS:
        q, k = (torch.empty(batch, h, length, head, dtype=HALF, device="meta") for h, length in ((heads, n), (kv, keys)))
        one = spec.spec_of(q, k, k, None, None, causal=causal, scale=1.0)
        made = [spec.forward_choices(one), spec.keys_choices(one), spec.queries_choices(one)]
        yield f"attention {n}x{keys}x{head} {'causal' if causal else 'all'}: " + "; ".join(" ".join(map(spelt, each)) for each in made)
        if few := spec.few_of(one):
            yield f"  {few.splits} splits of {few.chunk}, {spelt(few.blocks)}"
