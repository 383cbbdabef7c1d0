"""GEMM templates go through Triton's compiler for a GPU that need not be here."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import replace

import pytest
import torch
from triton_reference import load_module

from inductor.codegen.triton.print_kernel import MODULE_HEAD
from inductor.codegen.triton.template import print_template
from inductor.codegen.triton.template_configs import FULL_DEVICE, candidate_blocks
from inductor.codegen.triton.template_likely import estimates, likely_blocks
from inductor.ir.body import LoopBody, Ops, loop_variables
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.scheduler.gemms import as_gemm
from inductor.scheduler.schedule import Kernel, Part, TemplateKernel

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}


def view(name: str, *size: int, turned: bool = False, dtype=torch.float16) -> tuple[ViewRef, Layout]:
    """A matrix; turned: its first axis is the one that lies densely."""
    stride = (1, size[0]) if turned else (size[1], 1)
    return ViewRef(name, size, stride, 0, dtype), Layout(DEVICE, dtype, size, stride)


def linear(m: int, n: int, k: int, parts: int, dtype=torch.float16):
    """GEMMs with weights [n, k], each with its sigmoid where there is one part."""
    x, layout = view("x", m, k, dtype=dtype)
    layouts = {"x": layout}
    made = []
    for number in range(parts):
        w, layouts[f"w{number}"] = view(f"w{number}", k, n, turned=True, dtype=dtype)
        _, result = view(f"y{number}", m, n, dtype=dtype)
        layouts[f"y{number}"] = layouts[f"z{number}"] = result
        call = ExternKernel(f"y{number}", result, aten.mm.default, (x, w))
        gemm = as_gemm(call, layouts)
        assert gemm is not None
        if parts > 1:
            made.append(Part((gemm,), None, (f"y{number}",)))
            continue
        ops = Ops()
        (flat,) = loop_variables((m * n,))
        value = ops.to_dtype(ops.load("y0", flat, dtype), torch.float32)
        ops.store("z0", flat, ops.to_dtype(ops.sigmoid(value), dtype))
        made.append(Part((gemm,), Kernel("k", (), (LoopBody((m * n,), (), tuple(ops.recorded)),))))
    return TemplateKernel("t", tuple(made)), layouts


def behind(make, tiles: int, m=4096, n=3072, k=768, result=torch.float16):
    """A GEMM and `make(ops, value, *others)` of it, where the others are tiles that are read."""
    template, layouts = linear(m, n, k, 1)
    layouts["z"] = Layout(DEVICE, result, (m, n), (n, 1))
    ops = Ops()
    (flat,) = loop_variables((m * n,))
    values = []
    for name in ("y0", *(f"t{number}" for number in range(tiles))):
        layouts[name] = layouts["y0"]
        values.append(ops.to_dtype(ops.load(name, flat, torch.float16), torch.float32))
    value = make(ops, *values)
    ops.store("z", flat, value if result is torch.float32 else ops.to_dtype(value, result))
    kernel = Kernel("k", (), (LoopBody((m * n,), (), tuple(ops.recorded)),))
    (part,) = template.parts
    return TemplateKernel("t", (Part(part.gemms, kernel),)), layouts


def stack_bytes(built, folder) -> int:
    """What a thread keeps in memory, since it has no register for it."""
    place = folder / "built.cubin"
    place.write_bytes(built.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(place)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", said)
    return int(found)


def gelu(ops, x):
    inner = ops.erf(ops.mul(x, ops.constant(math.sqrt(0.5), torch.float32)))
    around = ops.mul(ops.add(inner, ops.constant(1.0, torch.float32)), ops.constant(0.5, torch.float32))
    return ops.mul(x, around)


def derivative_of_gelu(ops, gradient, x):
    """By tanh, of one tile that is read."""
    inner = ops.mul(ops.add(x, ops.mul(ops.mul(x, x), x)), ops.constant(0.79788, torch.float32))
    way = ops.tanh(inner)
    rest = ops.sub(ops.constant(1.0, torch.float32), ops.mul(way, way))
    return ops.mul(gradient, ops.add(way, ops.mul(x, rest)))


def convolved(count: int, channels: int, size: int, results: int, window: int, *, stride=1,
              padding=0, groups=1, dtype=torch.float16):
    """Square images in channels last, with the sigmoid of the result."""
    def image(name, *sizes):
        n, c, h, w = sizes
        strides = (h * w * c, 1, w * c, c)
        return ViewRef(name, sizes, strides, 0, dtype), Layout(DEVICE, dtype, sizes, strides)

    made = (size + 2 * padding - window) // stride + 1
    x, image_of_x = image("x", count, channels, size, size)
    w, image_of_w = image("w", results, channels // groups, window, window)
    _, result = image("y", count, results, made, made)
    layouts = {"x": image_of_x, "w": image_of_w, "y": result, "z": result}
    steps = ((stride,) * 2, (padding,) * 2, (1, 1))
    call = ExternKernel("y", result, aten.convolution.default, (x, w, None, *steps, False, (0, 0), groups))
    gemm = as_gemm(call, layouts)
    assert gemm is not None and gemm.window is not None
    elements = result.numel()
    ops = Ops()
    (flat,) = loop_variables((elements,))
    value = ops.to_dtype(ops.load("y", flat, dtype), torch.float32)
    ops.store("z", flat, ops.to_dtype(ops.sigmoid(value), dtype))
    kernel = Kernel("k", (), (LoopBody((elements,), (), tuple(ops.recorded)),))
    return TemplateKernel("t", (Part((gemm,), kernel),)), layouts


def compiled(template, layouts, folder):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = print_template(template, layouts)
    module = load_module(f"{MODULE_HEAD}\n\n{source.text}", folder)
    function = getattr(module, source.name)
    if source.partial is not None:
        layouts = layouts | {source.partial.name: Layout(DEVICE, torch.float32, (1,), (1,))}
    kinds = [POINTERS[layouts[name].dtype] for name in source.parameters]
    what = ASTSource(
        fn=function, signature=dict(zip(function.arg_names, kinds, strict=True)), constexprs={},
        attrs={(n,): [["tt.divisibility", 16]] for n in range(len(kinds))},
    )
    return triton.compile(what, target=GPUTarget("cuda", 90, 32), options=source.options())


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("m", [4096, 16])
def test_candidates(m, parts, tmp_path) -> None:
    template, layouts = linear(m, 3072, 768, parts)
    found = candidate_blocks(template)
    for blocks in (found[1], *found[-2:]):
        built = compiled(replace(template, blocks=blocks), layouts, tmp_path)
        assert built.metadata.shared <= 227 << 10
        tensor_cores = "wgmma" if blocks.rows >= 64 else "mma.sync"
        assert tensor_cores in built.asm["ptx"]
        assert blocks.descriptors == ("cp.async.bulk.tensor" in built.asm["ptx"])
        count = sum(part is not None for part in template.parts) + 1
        assert built.metadata.global_scratch_size == 128 * count * blocks.descriptors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_odd_sizes_and_dtypes(dtype, tmp_path) -> None:
    template, layouts = linear(1000, 333, 77, 1, dtype)
    compiled(replace(template, blocks=candidate_blocks(template)[0]), layouts, tmp_path)


@pytest.mark.parametrize("sizes, more", [
    ((64, 64, 56, 64, 3), {"padding": 1}), ((64, 512, 7, 512, 3), {"padding": 1}),
    ((64, 256, 28, 256, 3), {"padding": 1, "stride": 2}), ((64, 256, 56, 512, 1), {"stride": 2}),
    ((64, 128, 28, 32, 3), {"padding": 1}), ((64, 48, 28, 96, 3), {"padding": 1}),
], ids=str)
def test_convolutions(sizes, more, tmp_path) -> None:
    """Matrix units, and operands that are on their way 16 bytes at a time."""
    template, layouts = convolved(*sizes, **more)
    for blocks in [each for each in candidate_blocks(template) if not each.descriptors][:3]:
        built = compiled(replace(template, blocks=blocks), layouts, tmp_path)
        assert built.metadata.shared <= 227 << 10
        assert "wgmma" in built.asm["ptx"]
        assert re.search(r"cp\.async\.\w+\.shared\.global.*, 0x10", built.asm["ptx"])
        assert not re.search(r"cp\.async\.\w+\.shared\.global.*, 0x[48],", built.asm["ptx"])


@pytest.mark.parametrize("sizes, more, columns", [
    ((64, 64, 56, 64, 3), {"padding": 1}, 64), ((64, 128, 28, 128, 3), {"padding": 1}, 128),
    ((64, 256, 56, 512, 1), {"stride": 2}, 64), ((64, 3, 224, 64, 7), {"padding": 3, "stride": 2}, 64),
], ids=str)
def test_convolutions_that_are_likely(sizes, more, columns, tmp_path) -> None:
    template, layouts = convolved(*sizes, **more)
    likely = likely_blocks(template, layouts)
    assert likely is not None and likely.blocks is not None
    assert likely.blocks.columns == columns or likely.blocks.columns > 64
    library, own = estimates(likely, layouts)
    elements = layouts["x"].numel() + layouts["y"].numel()
    assert elements * 2 / 4.8e6 < own < library  # no faster than memory
    assert "wgmma" in compiled(likely, layouts, tmp_path).asm["ptx"]


@pytest.mark.parametrize("sizes, more", [
    ((64, 512, 7, 512, 3), {"padding": 1}), ((1, 64, 56, 64, 3), {"padding": 1}), ((64, 48, 56, 64, 3), {"padding": 1}),
    ((8, 256, 14, 256, 3), {"padding": 1}),
], ids=str)
def test_other_convolutions_stay_with_the_library(sizes, more) -> None:
    template, layouts = convolved(*sizes, **more)
    assert likely_blocks(template, layouts) is None
    single, wide = convolved(64, 64, 56, 64, 3, padding=1, dtype=torch.float32)
    assert likely_blocks(single, wide) is None


@pytest.mark.parametrize("sizes, more", [
    ((64, 64, 56, 64, 3), {"padding": 1}), ((64, 256, 14, 256, 3), {"padding": 1}),
    ((64, 256, 56, 512, 1), {"stride": 2}), ((64, 32, 28, 96, 3), {"padding": 1}),
    ((64, 128, 56, 128, 3), {"padding": 1, "stride": 2}),
], ids=str)
def test_convolutions_by_boxes(sizes, more, tmp_path) -> None:
    """What the engine copies goes to the matrix units from where it lies."""
    template, layouts = convolved(*sizes, **more)
    boxed = [each for each in candidate_blocks(template) if each.descriptors]
    assert any(each.persistent for each in boxed) and not all(each.persistent for each in boxed)
    for blocks in boxed:
        built = compiled(replace(template, blocks=blocks), layouts, tmp_path)
        assert built.metadata.shared <= 227 << 10 and built.metadata.global_scratch_size == 256
        steps = more.get("stride", 1) > 1 and sizes[-1] > 1
        assert f"cp.async.bulk.tensor.{5 if steps else 4}d" in built.asm["ptx"]
        found = [line for line in built.asm["ttgir"].splitlines() if "warp_group_dot " in line]
        assert found and all(line.count("#smem, mutable>") >= 2 for line in found)


GROUPED = [
    ((16, 96, 56, 96, 3), {"padding": 1, "groups": 2}), ((16, 432, 14, 432, 3), {"padding": 1, "groups": 9}),
    ((16, 192, 28, 192, 3), {"padding": 1, "stride": 2, "groups": 8}), ((16, 448, 28, 448, 3), {"padding": 1, "groups": 8}),
    ((16, 256, 28, 512, 3), {"padding": 1, "groups": 2}), ((1, 512, 7, 1024, 3), {"padding": 1, "groups": 2}),
]


@pytest.mark.parametrize("sizes, more", GROUPED, ids=str)
def test_convolutions_with_groups(sizes, more, tmp_path) -> None:
    """As those without: whatever the groups, operands come 16 bytes at a time. Unmeasured where groups are wide."""
    template, layouts = convolved(*sizes, **more)
    likely = likely_blocks(template, layouts)
    width = sizes[1] // more["groups"]
    assert (likely is not None) == (width > 32)
    found = candidate_blocks(template)
    assert all(each.columns <= max(64 if each.descriptors else 16, 1 << (template.gemms()[0].columns - 1).bit_length()) for each in found)
    chosen = [] if likely is None else [likely.blocks]
    for blocks in (*chosen, found[0], *[each for each in found if each.descriptors][:2]):
        built = compiled(replace(template, blocks=blocks), layouts, tmp_path)
        assert built.metadata.shared <= 227 << 10
        assert "wgmma" in built.asm["ptx"]
        if blocks.descriptors:
            assert f"cp.async.bulk.tensor.{5 if 'stride' in more else 4}d" in built.asm["ptx"]
            continue
        assert re.search(r"cp\.async\.\w+\.shared\.global.*, 0x10", built.asm["ptx"])
        few = blocks.depth * blocks.columns < 8 * 32 * blocks.warps  # of a small weight tile 8 bytes a thread
        assert not re.search(rf"cp\.async\.\w+\.shared\.global.*, 0x{'4' if few else '[48]'},", built.asm["ptx"])


@pytest.mark.parametrize("tf32", [False, True])
def test_convolutions_of_few_channels_and_of_float32(tf32, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    for template, layouts in (
        convolved(8, 3, 224, 64, 7, stride=2, padding=3),
        convolved(8, 64, 28, 64, 3, padding=1, dtype=torch.float32),
    ):
        built = compiled(replace(template, blocks=candidate_blocks(template)[0]), layouts, tmp_path)
        half = template.gemms()[0].dtype is torch.float16
        assert ("tf32" in built.asm["ptx"]) == (tf32 and not half)


@pytest.mark.parametrize("m, n, k", [(200704, 256, 64), (25216, 768, 192), (401408, 144, 24), (802816, 16, 32)])
def test_gemms_that_wait_for_memory_are_likely(m, n, k, tmp_path) -> None:
    template, layouts = linear(m, n, k, 1)
    likely = likely_blocks(template, layouts)
    assert likely is not None and likely.blocks is not None
    _, own = estimates(likely, layouts)
    assert own > m * n * 2 / 4.8e6  # no faster than memory
    built = compiled(likely, layouts, tmp_path)
    tensor_cores = "wgmma" if likely.blocks.warps >= 4 else "mma.sync"
    assert tensor_cores in built.asm["ptx"]
    assert built.metadata.shared <= 113 << 10  # two run side by side


@pytest.mark.parametrize("m, n, k", [(4096, 3072, 768), (12608, 3072, 768), (16384, 2048, 512)])
def test_gemms_that_fill_the_device_are_likely(m, n, k, tmp_path) -> None:
    """Several tiles for each multiprocessor, and something behind them."""
    template, layouts = linear(m, n, k, 1)
    likely = likely_blocks(template, layouts)
    assert likely is not None and likely.blocks == FULL_DEVICE
    built = compiled(likely, layouts, tmp_path)
    assert "wgmma" in built.asm["ptx"] and "cp.async.bulk.tensor" in built.asm["ptx"]
    odd, of_odd = linear(m, n, k + 1, 1)  # whose rows do not begin at multiples of 16 bytes
    assert likely_blocks(odd, of_odd) is None


@pytest.mark.parametrize("make, tiles", [
    (lambda ops, v, a: ops.add(v, a), 1), (lambda ops, v, a: ops.where(ops.gt(a, v), v, a), 1),
    (lambda ops, v: ops.mul(v, ops.sigmoid(v)), 0), (gelu, 0),
], ids=["add", "where", "silu", "gelu"])
def test_what_follows_a_full_tile_stays_in_registers(make, tiles, tmp_path) -> None:
    template, layouts = behind(make, tiles, 12608)
    likely = likely_blocks(template, layouts)
    assert likely is not None and likely.blocks == FULL_DEVICE
    assert stack_bytes(compiled(likely, layouts, tmp_path), tmp_path) == 0


@pytest.mark.parametrize("make, tiles, result", [
    (lambda ops, v, a, b: ops.add(ops.mul(v, a), b), 2, torch.float16),
    (lambda ops, v: ops.log1p(v), 0, torch.float16), (lambda ops, v: ops.floordiv(v, v), 0, torch.float16),
    (lambda ops, v: ops.add(v, v), 0, torch.float32), (derivative_of_gelu, 1, torch.float16),
    (lambda ops, v, a: ops.mul(v, ops.sigmoid(a)), 1, torch.float16),
    (lambda ops, v: ops.mul(v, ops.erf(v)), 0, torch.float16),
], ids=["two tiles", "log1p", "floordiv", "float32", "derivative", "sigmoid", "erf"])
def test_what_takes_long_behind_a_full_tile_is_not_likely(make, tiles, result) -> None:
    template, layouts = behind(make, tiles, 12608, result=result)
    assert likely_blocks(template, layouts) is None


@pytest.mark.parametrize("m, n, k", [
    (4096, 3072, 3072), (1576, 3072, 768), (2048, 3072, 768), (3136, 2048, 512), (1024, 256, 64), (128, 16, 32), (200704, 256, 63), (4096, 768, 3072),
])
def test_other_gemms_stay_with_the_library(m, n, k) -> None:
    template, layouts = linear(m, n, k, 1)
    assert likely_blocks(template, layouts) is None
    single, wide = linear(200704, 256, 64, 1, dtype=torch.float32)
    assert likely_blocks(single, wide) is None
    (part,) = linear(200704, 256, 64, 1)[0].parts
    alone = TemplateKernel("t", (Part(part.gemms, None, ("y0",)),))
    assert likely_blocks(alone, layouts) is None  # nothing follows
