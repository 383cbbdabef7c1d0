"""Kernels are chosen by the properties of a GPU that need not be here, and fit it: they go through
Triton's compiler for it, to the end."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from triton_kernels import every_operation
from triton_reference import layout_of, load_module, module_text

from inductor.codegen.triton.print_kernel import MODULE_HEAD, print_kernel
from inductor.codegen.triton.print_list import print_list
from inductor.codegen.triton.template import print_template
from inductor.codegen.triton.template_configs import candidate_blocks
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.config import config
from inductor.ir.gpus import described
from inductor.kernels import attention_spec
from inductor.kernels.gpu.attention.launches import kernel as attention_kernel
from inductor.lowering import pointwise, readings
from inductor.lowering.run import lower_graph
from inductor.scheduler.lists import join_lists
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import KernelList

sys.path += [str(Path(__file__).parents[1] / name) for name in ("codegen", "symbolic")]
from for_all_sizes import capture
from gpu_choices import CONVOLUTIONS, DEVICE, PROGRAMS, convolved, kernels_of, linear
from test_triton_compiles import POINTERS

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

KINDS = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")
for_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def gpu(kind: str):
    with config.patch(gpu=kind):
        yield described(kind)


def build(gpu, function, signature, constants, options):
    """Compiles and assembles it; it needs no more than a program may have there."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    is_amd = not gpu.capability
    target = GPUTarget("hip", gpu.kind, gpu.warp) if is_amd else GPUTarget("cuda", gpu.capability, gpu.warp)
    places = [n for n, name in enumerate(function.arg_names) if str(signature.get(name)).startswith("*")]
    source = ASTSource(
        fn=function, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants,
        attrs={(n,): [["tt.divisibility", 16]] for n in places})
    built = triton.compile(source, target=target, options=options)
    assert built.asm["hsaco" if is_amd else "cubin"]
    assert built.metadata.shared <= gpu.shared
    assert built.metadata.num_warps * gpu.warp <= gpu.threads
    return built


def build_printed(gpu, printed, layouts, folder):
    module = load_module(module_text(printed), folder)
    kinds = {name: POINTERS[each.dtype] for name, each in (*layouts.items(), *((s.name, s) for s in printed.scratch))}
    for source in printed.sources:
        function = getattr(module, source.name)
        signature = {own: kinds[name] for own, name in zip(function.arg_names, source.parameters)}
        for each in source.choices.all():
            options = {"num_warps": each.warps, "debug": source.may_fail}
            build(gpu, function, signature, {"XBLOCK": each.rows, "RBLOCK": each.columns}, options)


@pytest.mark.parametrize("at", [0, 3, 4, 5, 6, 9, 13, 17], ids=lambda at: "-".join(map(str, (PROGRAMS[at][0], *PROGRAMS[at][2]))))
@for_kinds
def test_kernels(gpu, at, tmp_path) -> None:
    _, *program = PROGRAMS[at]
    kernels, layouts = kernels_of(*program)
    for kernel in kernels:
        build_printed(gpu, print_kernel(kernel, layouts), layouts, tmp_path)


@pytest.mark.parametrize(("function", "shape", "dtype"), [
    (lambda x: nn.functional.layer_norm(x, x.shape[1:]) + x, (450, 4096), torch.float16),
    (lambda x: (x.relu().t().contiguous(), x.abs().amax()), (200, 256), torch.float16),
    (lambda x: x.softmax(-1), (100, 50257), torch.float32),
    (lambda x: nn.functional.batch_norm(x, None, None, training=True), (8, 112, 64, 64), torch.float32),
    (lambda x: x.view(-1, 4).sum(1), (4000, 4), torch.float32),
], ids=["few-rows", "across", "evicted", "few-channels", "short-sums"])
@for_kinds
def test_choices_at_their_limits(gpu, function, shape, dtype, tmp_path) -> None:
    """Choices that turn between these devices, by their caches and multiprocessors."""
    kernels, layouts = kernels_of(function, shape, dtype)
    for kernel in kernels:
        build_printed(gpu, print_kernel(kernel, layouts), layouts, tmp_path)


@pytest.mark.parametrize("kind", KINDS[:-1])  # AMD's mathematics library has no rint
def test_every_operation(gpu, tmp_path) -> None:
    kernel, buffers = every_operation(torch.float32)
    layouts = {name: replace(layout_of(t), device=DEVICE) for name, t in buffers.items()}
    build_printed(gpu, print_kernel(kernel, layouts), layouts, tmp_path)


def int4(x, w, s, z):
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)
    n = ((w[..., None] >> shifts) & 15).view(w.shape[0], -1, 128).to(x.dtype)
    return nn.functional.linear(x, ((n - 8) * s[..., None] + z[..., None]).flatten(1))


def gated_int4(x, w, s, z, *up):
    return nn.functional.silu(int4(x, w, s, z)) * int4(x, *up)


@pytest.mark.parametrize(("rows", "terms", "dtype", "count"), [
    (4096, 14336, torch.int32, 1), (14336, 4096, torch.int32, 2), (128256, 4096, torch.int32, 1), (14336, 8192, torch.int8, 1)])
@for_kinds
def test_one_row(monkeypatch, gpu, rows, terms, dtype, count, tmp_path) -> None:
    """Through matrix units where there are those of NVIDIA."""
    monkeypatch.setattr(readings, "reads_words", lambda call: gpu.capability > 0)
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: gpu.capability >= readings.FIRST_WITH_UNITS)
    empty = functools.partial(torch.empty, device="meta")
    weight = [empty(rows, terms // (1 if dtype is torch.int8 else 8), dtype=dtype)]
    program, half = lambda x, w: nn.functional.linear(x, w.to(x.dtype)), torch.bfloat16
    if dtype is torch.int32:
        program = gated_int4 if count == 2 else int4
        weight += [empty(rows, terms // 128, dtype=half)] * 2
    graph = lower_graph(capture(program, [empty(1, terms, dtype=half), *weight * count], mode="fake")).graph
    layouts = {name: replace(layout, device=DEVICE) for name, layout in graph.layouts().items()}
    printed = [print_kernel(kernel, layouts) for kernel in schedule_graph(graph, 8).kernels()]
    assert ("tl.dot" in "".join(source.text for each in printed for source in each.sources)) == bool(gpu.capability)
    for each in printed:
        build_printed(gpu, each, layouts, tmp_path)


def gptq(x, w, z, s):
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)
    w = ((w[:, None, :] >> shifts[None, :, None]) & 15).reshape(s.shape[0], -1, s.shape[1])
    z = ((z[:, :, None] >> shifts) & 15).reshape(s.shape[0], 1, -1) + 1
    return x @ (s[:, None, :] * (w - z)).reshape(-1, s.shape[1])


@pytest.mark.parametrize(("stored", "columns", "rows"), [(torch.int32, 4096, 1), (torch.int32, 6144, 16), (torch.int8, 4096, 1), (torch.float8_e4m3fn, 4100, 1)])
@pytest.mark.parametrize("kind", ["sm_90", "sm_100"])  # which convert floats of 8 bits
def test_columns(monkeypatch, gpu, stored, columns, rows, tmp_path) -> None:
    monkeypatch.setattr(readings, "reads_words", lambda call: True)
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(readings, "most_rows", lambda call, is_narrow: 1)
    monkeypatch.setattr(pointwise, "converts_small_floats", lambda device: True)
    empty, half = functools.partial(torch.empty, device="meta"), torch.bfloat16
    given = [empty(rows, 4096, dtype=half), empty(4096, columns, dtype=stored)]
    if stored is torch.int32:
        given[1:] = [empty(512, columns, dtype=stored), empty(32, columns // 8, dtype=stored), empty(32, columns, dtype=half)]
    program = gptq if stored is torch.int32 else lambda x, w: x @ w.to(x.dtype)
    graph = lower_graph(capture(program, given, mode="fake")).graph
    layouts = {name: replace(layout, device=DEVICE) for name, layout in graph.layouts().items()}
    printed = [print_kernel(kernel, layouts) for kernel in schedule_graph(graph, 8).kernels()]
    assert ("tl.dot" in "".join(source.text for each in printed for source in each.sources)) == (stored is torch.int32)
    monkeypatch.setitem(POINTERS, torch.float8_e4m3fn, "*fp8e4nv")
    for each in printed:
        build_printed(gpu, each, layouts, tmp_path)


@for_kinds
def test_depthwise(gpu, tmp_path) -> None:
    x = torch.empty(64, 96, 28, 28, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)
    weight = torch.empty(96, 1, 3, 3, dtype=torch.float16, device="meta")
    graph = lower_graph(capture(lambda x, w: nn.functional.silu(nn.functional.conv2d(x, w, None, 1, 1, 1, 96)), [x, weight], mode="fake"))
    layouts = {name: replace(layout, device=DEVICE) for name, layout in graph.graph.layouts().items()}
    kernels = [*schedule_graph(graph.graph, 8).kernels()]
    assert kernels
    for kernel in kernels:
        build_printed(gpu, print_kernel(kernel, layouts), layouts, tmp_path)


@pytest.mark.parametrize("made", [
    functools.partial(linear, 4096, 3072, 768, 1), functools.partial(linear, 8, 2048, 5632, 2),
    functools.partial(linear, 300, 512, 512, 1, torch.float32), functools.partial(convolved, *CONVOLUTIONS[0]),
    functools.partial(convolved, 16, 432, 14, 432, 3, groups=9), functools.partial(convolved, 1, 256, 7, 512, 3, groups=2),
], ids=["many", "few", "float32", "convolution", "groups", "few-pixels-in-groups"])
@for_kinds
def test_templates(gpu, made, tmp_path) -> None:
    template, layouts = made()
    likely = likely_blocks(template, layouts)
    tried = [] if likely is None else [likely.blocks]
    tried += candidate_blocks(template)
    assert gpu.has_descriptors or not any(each.descriptors for each in tried)
    for blocks in dict.fromkeys(tried):
        source = print_template(replace(template, blocks=blocks), layouts)
        function = getattr(load_module(f"{MODULE_HEAD}\n\n{source.text}", tmp_path), source.name)
        kinds = [POINTERS[torch.float32 if source.partial and name == source.partial.name else layouts[name].dtype] for name in source.parameters]
        build(gpu, function, dict(zip(function.arg_names, kinds, strict=True)), {}, source.options())


@pytest.mark.parametrize(("kind", "head"), [(kind, head) for kind in KINDS for head in ((128, 256) if kind in ("sm_89", "gfx942") else (128,))])
def test_attention(gpu, head) -> None:
    q = torch.empty(2, 8, 512, head, dtype=torch.float16, device="meta")
    spec = attention_spec.spec_of(q, q, q, None, None, causal=True, scale=0.1, lse=True)
    assert spec.gpu is gpu
    constants = spec.constants((head, head, head, 1)) | {"HAS_DB": False}
    for name, choices in (
        ("forward", attention_spec.forward_choices(spec)), ("backward_keys", attention_spec.keys_choices(spec)),
        ("backward_queries", attention_spec.queries_choices(spec)),
    ):
        function = attention_kernel(name).function()
        for blocks in choices[:1]:
            known = {n: constants[n] for n in function.arg_names if n in constants} | {"ROWS": blocks.rows, "COLUMNS": blocks.columns}
            signature = {n: "*fp32" if n in ("LSE", "DELTA") else "*fp16" for n in function.arg_names if n not in known}
            build(gpu, function, signature, known, {"num_warps": blocks.warps, "num_stages": blocks.stages})


@for_kinds
def test_lists(gpu, tmp_path) -> None:
    tensors = [torch.empty(n, 64) for n in range(1, 9)]
    graph = lower_graph(capture(lambda xs, ys: [x * y + y for x, y in zip(xs, ys)], [tensors, tensors], mode="fake")).graph
    (found,) = [each for each in join_lists(graph, schedule_graph(graph, 8, False)).steps if isinstance(each, KernelList)]
    source = print_list(found, graph.layouts())
    function = getattr(load_module(f"{MODULE_HEAD}\n\n{source.text}", tmp_path), source.name)
    constants = {k: v for k, v in source.options(True).items() if k != "num_warps"}
    build(gpu, function, {"table": "*i64", "places": "*i32"}, constants, {"num_warps": source.warps})
