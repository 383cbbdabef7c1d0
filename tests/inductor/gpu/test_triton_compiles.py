"""Printed kernels go through Triton's compiler for a GPU that need not be here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton_kernels import CASES, every_operation
from triton_reference import layout_of, load_module, module_text

from inductor.codegen.triton import configs, plan, split
from inductor.codegen.triton import print_kernel as printer
from inductor.codegen.triton.print_kernel import MODULE_HEAD, print_kernel
from inductor.codegen.triton.print_list import print_list
from inductor.lowering import pointwise, readings
from inductor.lowering.run import lower_graph
from inductor.runtime.list_launches import FILL
from inductor.scheduler.lists import join_lists
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import KernelList

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.bool: "*i1", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv",
}
LOW = {
    "MOST_INT32": 0,
    "PERSISTENT_COLUMNS": 4, "PERSISTENT_WITH_LOCALS": 8, "PERSISTENT_ALONG_ROWS": 4, "ENOUGH_ROWS": 100, "LARGE_KERNEL": 64, "SMALL_STAGE": 0,
    "FEWEST_COLUMNS": (40, 40), "COLUMNS_OF_A_PROGRAM": (16, 16),
}


def compile_all(printed, buffers, folder) -> list[str]:
    """PTX of each function."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = load_module(module_text(printed), folder)
    kinds = {name: POINTERS[t.dtype] for name, t in buffers.items()}
    kinds |= {scratch.name: POINTERS[scratch.dtype] for scratch in printed.scratch}
    found = []
    compiled = [
        (source, found.configs[0], is_even) for source in printed.all_sources() for found in source.choices.classes
        for is_even in ((False, True) if source.even else (None,))
    ]
    for source, config, is_even in compiled:
        function = getattr(module, source.name)
        names = zip(function.arg_names, source.parameters)
        signature = {own: kinds[name] for own, name in names}
        signature |= {number.name: number.kind for number in source.numbers}
        signature |= {"XBLOCK": "constexpr", "RBLOCK": "constexpr"}
        signature |= {} if is_even is None else {"IS_EVEN": "constexpr"}
        what = ASTSource(
            fn=function, signature=signature,
            constexprs={"XBLOCK": config.rows, "RBLOCK": config.columns}
            | ({} if is_even is None else {"IS_EVEN": is_even}),
            attrs={(n,): [["tt.divisibility", 16]] for n in range(len(source.parameters))},
        )
        options = {"num_warps": config.warps, "debug": source.may_fail, "sanitize_overflow": False}
        built = triton.compile(what, target=GPUTarget("cuda", 90, 32), options=options)
        found.append(built.asm["ptx"])
    return found


@pytest.mark.parametrize("limits", [{}, LOW], ids=["default", "low"])
@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_by_hand(case, limits, tmp_path, monkeypatch) -> None:
    for module in (plan, split, configs, printer):
        for name, value in limits.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    kernel, buffers = case()
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    for text in compile_all(printed, buffers, tmp_path):
        assert ".visible .entry" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_every_operation(dtype, tmp_path) -> None:
    kernel, buffers = every_operation(dtype)
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    assert compile_all(printed, buffers, tmp_path)


@pytest.mark.parametrize("dtype", [torch.int64, *(pytest.param(each, marks=pytest.mark.long) for each in (
    torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.bool))], ids=str)
def test_scans_and_sorts(dtype, tmp_path) -> None:
    def program(x):
        more = (x.cumprod(1), x.logcumsumexp(0)) if dtype.is_floating_point else ()
        return x.cumsum(1), x.cumsum(0), *torch.sort(x, stable=True), x.argsort(dim=0, descending=True, stable=True), *more

    lowered = lower_graph(capture(program, [torch.empty(140, 70, dtype=dtype, device="meta")], mode="fake"))
    layouts, found = lowered.graph.layouts(), {"tl.associative_scan": 0, "= k_sorted": 0}
    assert not lowered.fallbacks
    for kernel in schedule_graph(lowered.graph, 8).kernels():
        printed = print_kernel(kernel, layouts)
        counts = {text: sum(source.text.count(text) for source in printed.sources) for text in found}
        found = {text: found[text] + count for text, count in counts.items()}
        for ptx in compile_all(printed, layouts, tmp_path):
            assert ("shfl.sync" in ptx) == any(counts.values())
    assert found == {"tl.associative_scan": 4 if dtype.is_floating_point else 2, "= k_sorted": 2}


@pytest.mark.parametrize(("program", "dtype", "instruction"), [
    (lambda x: x.exp() / x.sin(), torch.float32, "div.rn.f32"),
    (lambda x: (x.exp() + 1).sqrt(), torch.float32, "sqrt.rn.f32"),
    (lambda x: x.exp().sigmoid(), torch.float32, "div.rn.f32"),
    (lambda x: x.sin().signbit(), torch.float64, "setp.lt.s64"),
])
def test_what_the_math_library_returns_has_a_dtype_like_any_other(program, dtype, instruction, tmp_path) -> None:
    lowered = lower_graph(capture(program, [torch.randn(8, dtype=dtype)]))
    layouts = lowered.graph.layouts()
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    for text in compile_all(print_kernel(kernel, layouts), layouts, tmp_path):
        assert instruction in text
        assert "div.full" not in text and "sqrt.approx" not in text


@pytest.mark.parametrize(("channels", "size", "launches"), [(144, 56, 2), (144, 28, 1), (288, 56, 1)])
def test_sums_over_images_fill_the_device(channels, size, launches) -> None:
    x = torch.empty(128, channels, size, size, dtype=torch.float16).to(memory_format=torch.channels_last)
    lowered = lower_graph(capture(lambda x: x.mean((2, 3)), [x], mode="fake"))
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    assert len(print_kernel(kernel, lowered.graph.layouts()).sources) == launches


@pytest.mark.parametrize(("dtype", "relaxed"), [(torch.float16, True), (torch.float32, False)])
def test_parts_of_sums_are_as_exact_as_their_result(dtype, relaxed) -> None:
    x = torch.randn(64, 32, 56, 56, dtype=dtype).to(memory_format=torch.channels_last)
    lowered = lower_graph(capture(lambda x: torch.nn.functional.silu(x).mean((2, 3)), [x], mode="fake"))
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    printed = print_kernel(kernel, lowered.graph.layouts())
    assert len(printed.sources) == 2 and printed.scratch
    assert ("k_quick_silu" in printed.sources[0].text) == relaxed
    lowered = lower_graph(capture(lambda x: torch.nn.functional.silu(x).sum((2, 3), dtype=torch.float32), [x], mode="fake"))
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    assert "k_quick_silu" not in print_kernel(kernel, lowered.graph.layouts()).sources[0].text


def test_what_is_rounded_does_not_depend_on_another_use() -> None:
    """Rounded to half precision, a value is the device's approximation; in float32 it is exact."""
    def text_of(function) -> str:
        lowered = lower_graph(capture(function, [torch.randn(64, 300).half()], mode="fake"))
        (kernel,) = schedule_graph(lowered.graph, 8).kernels()
        return print_kernel(kernel, lowered.graph.layouts()).sources[0].text

    rounded, exact = "tl.exp2(", "libdevice.exp("
    text = text_of(lambda x: x.exp())
    assert rounded in text and exact not in text
    text = text_of(lambda x: (x.exp(), x.exp().cos()))
    assert text.count(rounded) == 1 and text.count(exact) == 1
    text = text_of(lambda x: (x.exp().sum(1), x.exp().sum(1, dtype=torch.float32)))
    assert exact in text and rounded not in text


def test_float8_is_rounded_like_half_precision(tmp_path, monkeypatch) -> None:
    """Rows that are scaled into float8: what the maximum is taken of is not computed twice."""
    monkeypatch.setattr(pointwise, "converts_small_floats", lambda device: True)

    def scaled(x):
        x = torch.nn.functional.silu(x)
        scale = (x.abs().amax(1, keepdim=True) / 448).float()
        return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    x = torch.empty(2048, 4096, dtype=torch.bfloat16, device="meta")
    lowered = lower_graph(capture(scaled, [x], mode="fake"))
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    printed = print_kernel(kernel, lowered.graph.layouts())
    (source,) = printed.sources
    assert source.text.count("k_quick_silu(") == 1
    assert "libdevice.exp(" not in source.text and "k_truediv(" not in source.text
    (text,) = compile_all(printed, lowered.graph.layouts(), tmp_path)
    assert "e4m3x2" in text and "div.rn" not in text


def test_what_a_program_casts_is_what_eager_has() -> None:
    """`x.float()` of a value that is not in memory: rounded first, on a GPU, unless half precision has it."""
    def text_of(function, device="meta") -> str:
        x = torch.empty(64, 4096, dtype=torch.bfloat16, device=device)
        lowered = lower_graph(capture(function, [x], mode="fake"))
        return "".join(source.text for kernel in schedule_graph(lowered.graph, 8).kernels()
                       for source in print_kernel(kernel, lowered.graph.layouts()).sources)

    rounded = ".to(tl.bfloat16)"
    assert rounded in text_of(lambda x: (x * x).float() * 3)
    assert rounded in text_of(lambda x: (x * x).double().sum(1))
    assert rounded not in text_of(lambda x: (x * x).float() * 3, device="cpu")
    assert rounded not in text_of(lambda x: x.float() * 3)
    assert rounded not in text_of(lambda x: x.masked_fill(x.isnan(), 0).abs().relu().float() * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_a_number_divides_by_its_reciprocal(dtype) -> None:
    """As eager's kernels for a GPU do it; by a list of numbers they divide, and so does a CPU."""
    def text_of(function, device="meta") -> str:
        lowered = lower_graph(capture(function, [torch.empty(4096, dtype=dtype, device=device)], mode="fake"))
        (kernel,) = schedule_graph(lowered.graph, 8).kernels()
        return print_kernel(kernel, lowered.graph.layouts()).sources[0].text

    for number in (3.3, 7, 0, float("inf")):
        assert "truediv" not in text_of(lambda x, number=number: torch.log(x / number))
    assert "truediv" in text_of(lambda x: torch.log(x / 3.3), device="cpu")
    divides = "truediv" in text_of(lambda x: torch.log(torch._foreach_div([x], [3.3])[0]))
    assert divides == dtype.is_floating_point  # lists of whole numbers go one by one


def test_softmax_as_a_factor_of_a_sum() -> None:
    """exp(v - maximum - log), only summed, is the device's approximation; a difference of others is not."""
    def text_of(function) -> str:
        x = torch.empty(4096, 1024, device="meta")
        graph = lower_graph(capture(function, [x, x[0]], mode="fake")).graph
        return "".join(source.text for kernel in schedule_graph(graph, 8).kernels()
                       for source in print_kernel(kernel, graph.layouts()).sources)

    exact = "libdevice.exp("
    assert exact not in text_of(lambda x, y: (x.log_softmax(-1).exp() * y).sum(-1))
    assert exact in text_of(lambda x, y: ((x - y).exp() * y).sum(-1))
    assert exact in text_of(lambda x, y: x.log_softmax(-1).exp().cos().sum(-1))


def test_a_byte_for_each_row_of_one(tmp_path) -> None:
    """Zero points of rows: a program that has one row has one of them, and not four in a register."""
    given = [torch.randn(64, 1024).bfloat16(), torch.ones(64, 1, dtype=torch.int8)]
    lowered = lower_graph(capture(lambda x, zero: (x + zero).amax(1), given, mode="fake"))
    layouts = lowered.graph.layouts()
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    printed = print_kernel(kernel, layouts)
    assert printed.sources[0].choices.classes[0].configs[0].rows == 1
    assert "k_from_bytes(" in printed.sources[0].text
    assert compile_all(printed, layouts, tmp_path)


def test_many_elements_share_what_float64_gives(tmp_path) -> None:
    """A scale by way of float64, as float8 training has it, is computed once and not by threads."""
    def scaled(x, largest):
        return x * (448.0 / largest.double().clamp(min=1e-12)).float()

    for rows, is_stored in ((4096, True), (64, False)):
        given = [torch.empty(rows, 2048, device="meta"), torch.empty((), device="meta")]
        graph = lower_graph(capture(scaled, given, mode="fake")).graph
        texts = [source.text for kernel in schedule_graph(graph, 8).kernels()
                 for source in print_kernel(kernel, graph.layouts()).sources]
        assert len(texts) == 1 + is_stored and "float64" in texts[0] and ("float64" in texts[-1]) != is_stored


def test_even_rows_move_sixteen_bytes_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(configs, "ROW_LENGTHS", (2048,))
    lowered = lower_graph(capture(lambda x: x.softmax(-1), [torch.randn(3000, 40)]))
    layouts = lowered.graph.layouts()
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    printed = print_kernel(kernel, layouts)
    assert printed.short is not None and printed.short.even == (1,) and not printed.short.likely_even
    texts = compile_all(printed, layouts, tmp_path)
    assert ["ld.global.v4" in text for text in texts] == [False, True] * 2


@pytest.mark.parametrize("mode", ["symbolic", "fake"])
def test_elements_of_any_number_move_many_bytes_at_a_time(mode, tmp_path) -> None:
    inputs = [torch.randn(301, 999, dtype=torch.float16) for _ in range(2)]
    lowered = lower_graph(capture(lambda x, y: (x * 2 + y).relu(), inputs, mode=mode))
    layouts = lowered.graph.layouts()
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    *_, text = compile_all(print_kernel(kernel, layouts), layouts, tmp_path)
    for what in ("ld", "st"):
        assert re.search(rf"{what}\.global\S*\.v[24]\.b32", text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("program", "stores"), [
    (lambda x: torch.log_softmax(x, -1), True), (lambda x: torch.softmax(x, -1, torch.float32), True),
    (lambda x: x.float().logsumexp(-1), False),
    (lambda x: x / x.float().square().mean(-1, keepdim=True), True),
])
def test_unaligned_rows_move_many_bytes_at_a_time(program, stores, dtype, tmp_path) -> None:
    x = torch.randn(2000, 10001, dtype=dtype)
    lowered = lower_graph(capture(program, [x], mode="fake"))
    layouts = lowered.graph.layouts()
    (kernel,) = schedule_graph(lowered.graph, 8).kernels()
    for text in compile_all(print_kernel(kernel, layouts), layouts, tmp_path):
        moved = {what: re.findall(rf"{what}\.global\S*\.v[24]\.b32", text) for what in ("ld", "st")}
        assert moved["ld"] and bool(moved["st"]) == stores


@pytest.mark.parametrize("columns", [256, 896])
def test_four_bits_of_a_weight_are_one_instruction(columns, tmp_path, monkeypatch) -> None:
    """And they are loaded sixteen bytes at a time."""
    monkeypatch.setattr(readings, "reads_words", lambda call: True)
    monkeypatch.setattr(readings, "most_rows", lambda call, is_narrow: 1)
    rows, groups = 2048, columns // 8
    given = torch.empty(1, columns * 16), torch.empty(rows, columns * 8, dtype=torch.uint8), torch.empty(rows, groups, 1)

    def program(x, w, s):
        w = torch.stack([w & 15, w >> 4], -1).view(rows, groups, 128).bfloat16()
        return x.bfloat16() @ ((w - 8) * s.bfloat16() + s.bfloat16()).view(rows, -1).t()

    lowered = lower_graph(capture(program, given, mode="fake"))
    layouts = lowered.graph.layouts()
    *_, kernel = schedule_graph(lowered.graph, 8).kernels()
    (text,) = compile_all(print_kernel(kernel, layouts), layouts, tmp_path)
    assert re.search(r"ld\.global\S*\.v2\.b64", text) and "cvt.rn.f32" not in text
    assert text.count("lop3.b32") % 16 == 0 < text.count("lop3.b32") and ".local" not in text


@pytest.mark.parametrize("program", [
    lambda x: (x.t() + 1, x.sum(), x.softmax(-1) / x.shape[0]),
    lambda x: (torch.cat((x, x[:, 1:]), 1), x.argmax(0), x.var()),
])
def test_sizes_known_at_a_call(program, tmp_path) -> None:
    """Numbers are parameters of 32 bits, or of 64 where they are calculated with."""
    lowered = lower_graph(capture(program, [torch.randn(3000, 40)]))
    layouts = lowered.graph.layouts()
    kinds = set()
    for kernel in schedule_graph(lowered.graph, 8).kernels():
        printed = print_kernel(kernel, layouts)
        kinds |= {number.kind for source in printed.sources for number in source.numbers}
        for text in compile_all(printed, layouts, tmp_path):
            assert ".visible .entry" in text and ".param .u32" in text
    assert "i32" in kinds and kinds <= {"i32", "i64", "fp64"}


def test_lists_move_sixteen_bytes_at_a_time(tmp_path) -> None:
    """Where all buffers lie at such addresses; and what fills their table can be assembled."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def step(xs, ys):
        return [x * y.sum() + y for x, y in zip(xs, ys, strict=True)]

    tensors = [torch.empty(n, 64) for n in range(1, 9)]
    graph = lower_graph(capture(step, [tensors, tensors], mode="fake")).graph
    joined = join_lists(graph, schedule_graph(graph, 8, False))
    found = [each for each in joined.steps if isinstance(each, KernelList)]
    assert found and all(len(each.kernels) == 8 for each in found)
    for each in found:
        source = print_list(each, graph.layouts())
        function = getattr(load_module(f"{MODULE_HEAD}\n\n{source.text}", tmp_path), source.name)
        for aligned in (True, False):
            constants = {k: v for k, v in source.options(aligned).items() if k != "num_warps"}
            what = ASTSource(
                fn=function, constexprs=constants,
                signature={"table": "*i64", "places": "*i32", **dict.fromkeys(constants, "constexpr")},
                attrs={(n,): [["tt.divisibility", 16]] for n in range(2)},
            )
            made = triton.compile(what, target=GPUTarget("cuda", 90, 32), options={"num_warps": source.warps})
            assert ("ld.global.v4" in made.asm["ptx"]) == aligned
    path = triton.knobs.nvidia.ptxas.path
    (tmp_path / "fill.ptx").write_text(FILL)
    subprocess.run([path, "-arch=sm_90", str(tmp_path / "fill.ptx"), "-o", str(tmp_path / "fill")], check=True)
