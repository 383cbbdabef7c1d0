"""GEMMs of few rows with stored weights of low precision, in Triton's interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair

import dynamo
from dynamo.shapes.by_device import results
from inductor.codegen.triton import matrix_sums, plan, shared_rows, split
from inductor.driver import cuda
from inductor.ir.interpret import interpret_graph
from inductor.lowering import pointwise, readings
from inductor.lowering.builder import Builder
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture

N, K, GROUP = 48, 64, 16
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    monkeypatch.setattr(readings, "most_rows", lambda call, is_narrow: 4 if is_narrow else 1)
    monkeypatch.setattr(readings, "reads_words", lambda call: True)
    monkeypatch.setattr(pointwise, "converts_small_floats", lambda device: True)
    monkeypatch.setattr(readings, "FEWEST_TERMS", 1)
    monkeypatch.setattr(readings, "FEWEST_BYTES", 1)
    monkeypatch.setattr(readings, "FEWEST_OF_HALVES", 1)
    monkeypatch.setattr(shared_rows, "FEWEST_LEFT", 1)
    monkeypatch.setattr(split, "ENOUGH_PROGRAMS", 0)


def numbers(dtype, *size):
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    low, high = (0, 256) if dtype is torch.uint8 else (-100, 100)
    return torch.randint(low, high, size, dtype=dtype)


def scaled(x, w, s):
    return F.linear(x, w.to(x.dtype)) * s


def scaled_before(x, w, s):
    return F.linear(x, w.to(x.dtype) * s[:, None])


def with_bias(x, w, s):
    return F.relu(F.linear(x, w.to(x.dtype), s))


def gated(x, w, s):
    return F.silu(F.linear(x, w.to(x.dtype)) * s) * (F.linear(x, w.to(x.dtype) + 1) * s)


def residual(x, w, s):
    y = F.rms_norm(x, (K,))
    return x.sum(-1, keepdim=True) + F.linear(y, w.to(x.dtype)) * s


def grouped(x, w, s, z):
    w = (w.to(x.dtype).view(N, -1, GROUP) - z[..., None]) * s[..., None]
    return F.linear(x, w.view(N, K))


def packed(x, w, s, z):
    return grouped(x, torch.stack([w & 15, w >> 4], -1).reshape(N, K), s, z)


def packed_in_words(x, w, s, z):
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return grouped(x, ((w[..., None] >> shifts) & 15).reshape(N, K), s, z)


def packed_with_offsets(x, w, s, z):
    w = torch.stack([w & 15, w >> 4], -1).view(N, -1, GROUP).to(x.dtype)
    return F.linear(x, ((w - 8) * s[..., None] + z[..., None]).view(N, K))


def packed_signed(x, w, s, z):
    return grouped(x, torch.stack([(w << 4).view(torch.int8) >> 4, w.view(torch.int8) >> 4], -1).reshape(N, K), s, z)


GROUPS = (BF16, N, K // GROUP)
CASES = [
    (scaled, (torch.int8, N, K), (BF16, N)), (scaled_before, (torch.int8, N, K), (BF16, N)),
    (with_bias, (torch.uint8, N, K), (BF16, N)), (gated, (torch.int8, N, K), (BF16, N)),
    (residual, (torch.int8, N, K), (BF16, N)), (scaled, (BF16, N, K), (BF16, N)),
    (scaled, (torch.float8_e4m3fn, N, K), (BF16, N)), (scaled_before, (torch.float8_e5m2, N, K), (BF16, N)),
    (grouped, (torch.int8, N, K), GROUPS, GROUPS), (packed, (torch.uint8, N, K // 2), GROUPS, GROUPS),
    (packed_signed, (torch.uint8, N, K // 2), GROUPS, GROUPS),
    (packed_with_offsets, (torch.uint8, N, K // 2), GROUPS, GROUPS), (packed_in_words, (torch.int32, N, K // 8), GROUPS, GROUPS),
]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(("program", "given"), [(c[0], c[1:]) for c in CASES], ids=lambda c: getattr(c, "__name__", ""))
def test_weights_are_converted_as_they_are_read(program, given, dtype, rows) -> None:
    torch.manual_seed(0)
    w, *scales = (numbers(*each) for each in given)
    scales = [s.to(dtype) for s in scales]
    x = numbers(dtype, rows, K)
    found = dynamo.compile(program, backend=interpreted)(x, w, *scales)
    eager, exact = program(x, w, *scales), program(x.double(), w, *(s.double() for s in scales))
    far = (eager.double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= far + 1e-5 * exact.abs().max()
    in_mantissa = dtype is BF16 and program.__name__.startswith("packed")
    assert ("k_above_one(v" in texts[-1]) == in_mantissa
    narrow = w.dtype.itemsize < dtype.itemsize or w.dtype is torch.int32
    assert ("mm', ''" in texts[-1]) != (narrow or rows == 1)


@pytest.mark.parametrize("program", [packed, packed_with_offsets])
def test_activations_as_large_as_bfloat16_has_them(program) -> None:
    """What reads a number out of the mantissa does not multiply them before it sums."""
    torch.manual_seed(0)
    w, *scales = (numbers(*each) for each in ((torch.uint8, N, K // 2), GROUPS, GROUPS))
    x = 2.0**117 * torch.randn(1, K).sign().to(BF16)
    found = dynamo.compile(program, backend=interpreted)(x, w, *scales)
    exact = program(x.double(), w, *(s.double() for s in scales))
    assert "k_above_one(v" in texts[-1]
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max().item())


def nibbles_of(w):
    if w.dtype is torch.int32:
        return ((w[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15).flatten(1)
    return torch.stack([w & 15, w >> 4], -1).flatten(1)


def minus_zeros(x, w, s, z):
    n = nibbles_of(w).view(w.shape[0], s.shape[1], -1).to(x.dtype)
    return F.linear(x, ((n - z[..., None]) * s[..., None]).flatten(1))


def plus_zeros(x, w, s, z):
    n = nibbles_of(w).view(w.shape[0], s.shape[1], -1).to(x.dtype)
    return F.linear(x, ((n - 8) * s[..., None] + z[..., None]).flatten(1))


def gated_zeros(x, w, s, z):
    return F.silu(plus_zeros(x, w[:16], s[:16], z[:16])) * minus_zeros(x, w[16:32], s[16:32], z[16:32])


def signed(x, w, s, z):
    """Numbers from -8 to 7, as bytes are shifted to the left and back."""
    n = torch.stack([(w << 4).view(torch.int8) >> 4, w.view(torch.int8) >> 4], -1)
    return F.linear(x, (n.view(w.shape[0], s.shape[1], -1).to(x.dtype) * s[..., None] + z[..., None]).flatten(1))


def signed_of_words(x, w, s, z):
    n = ((w[..., None] << torch.arange(28, -4, -4, dtype=torch.int32)) >> 28).view(w.shape[0], s.shape[1], -1)
    return F.linear(x, (n.to(x.dtype) * s[..., None]).flatten(1))


def of_int8(x, w, s, z):
    return x.sum(-1, keepdim=True) + F.linear(x, w.to(x.dtype)) * s[:, 0]


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize(("k", "group"), [(512, 128), (512, 64), (768, 32), (1280, 256), (2816, 128)])
@pytest.mark.parametrize(("program", "stored"), [
    (minus_zeros, torch.int32), (minus_zeros, torch.uint8), (plus_zeros, torch.int32), (gated_zeros, torch.int32), (of_int8, torch.int8),
    (signed, torch.uint8), (signed_of_words, torch.int32)])
@pytest.mark.parametrize("rows", [1, 3, 8, 11])
def test_matrix_units(monkeypatch, program, stored, k, group, dtype, rows) -> None:
    """Shares, stretches and ends of many lengths; several rows of int8, and of short groups, go another way."""
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(matrix_sums, "FEWEST_BYTES", 0)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    torch.manual_seed(0)
    packed = {torch.int32: 8, torch.uint8: 2, torch.int8: 1}[stored]
    w = numbers(stored, 48, k // packed) if packed < 8 else torch.randint(-(2**31), 2**31, (48, k // 8)).int()
    s, z = (numbers(dtype, 48, k // group) for _ in range(2))
    x = numbers(dtype, rows if stored is not torch.int8 else 1, k) * 0.1
    found = dynamo.compile(program, backend=interpreted)(x, w, s, z)
    eager, exact = program(x, w, s, z), program(x.double(), w, s.double(), z.double())
    far, ours = ((each.double() - exact).abs().max() for each in (eager, found))
    if rows > 1 and group == 32 and program is not of_int8:  # units take sixteen elements with one scale, not eight
        assert ours <= 1.5 * far  # the weight is rounded as eager rounds it
        assert "tl.dot(k_nibbles_" not in texts[-1]
        return
    assert ours <= far + 1e-5 * exact.abs().max()
    assert ("k_bytes_" if program is of_int8 else "k_nibbles_") + {BF16: "bf16", torch.float16: "fp16"}[dtype] + "(" in texts[-1]


@pytest.mark.parametrize("rows", [1, 3, 11])
@pytest.mark.parametrize(("n", "k", "group"), [(40, 896, 128), (36, 960, 64), (33, 1120, 1120), (9, 672, 32)])
@pytest.mark.parametrize(("program", "stored"), [
    (minus_zeros, torch.int32), (minus_zeros, torch.uint8), (plus_zeros, torch.int32), (signed, torch.uint8), (of_int8, torch.int8)])
def test_odd_sizes_by_matrix_units(monkeypatch, program, stored, n, k, group, rows) -> None:
    """Neither the weight's rows nor its terms fill the tiles of a program."""
    if rows > 1 and (group == 32 or program is of_int8):
        pytest.skip("no matrix units")
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    monkeypatch.setattr(matrix_sums, "FEWEST_BYTES", 0)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    torch.manual_seed(0)
    packed = {torch.int32: 8, torch.uint8: 2, torch.int8: 1}[stored]
    w = numbers(stored, n, k // packed) if packed < 8 else torch.randint(-(2**31), 2**31, (n, k // 8)).int()
    s, z = (numbers(BF16, n, k // group) for _ in range(2))
    x = numbers(BF16, rows, k) * 0.1
    found = dynamo.compile(program, backend=interpreted)(x, w, s, z)
    eager, exact = program(x, w, s, z), program(x.double(), w, s.double(), z.double())
    far, ours = ((each.double() - exact).abs().max() for each in (eager, found))
    assert ours <= far + 1e-5 * exact.abs().max()
    assert ("k_bytes_" if program is of_int8 else "k_nibbles_") + "bf16(" in texts[-1]


def scaled_gemm(x, w, a, b):
    return F.relu(torch._scaled_mm(x, w.t(), a, b, out_dtype=BF16))


def exact_scaled_gemm(x, w, a, b):
    return F.relu(x.double() @ w.double().t() * a * b)


@pytest.mark.parametrize("rows", [1, 4])
def test_scaled_gemm(rows) -> None:
    x, w = (numbers(torch.float8_e4m3fn, size, K) for size in (rows, N))
    found = dynamo.compile(scaled_gemm, backend=interpreted)(x, w, a := torch.rand(()), b := torch.rand(1, 1))
    torch.testing.assert_close(found.double(), exact_scaled_gemm(x, w, a, b), rtol=4e-3, atol=1e-5)
    assert "_scaled_mm'" not in texts[-1]


def test_scales_of_rows_and_columns() -> None:
    """ATen has no such GEMM on a CPU."""
    x, w = (numbers(torch.float8_e4m3fn, size, K) for size in (3, N))
    given = x, w, torch.rand(3, 1), torch.rand(1, N)
    graph = lower_graph(capture(scaled_gemm, given, mode="fake")).graph
    (found,) = interpret_graph(graph, given)
    torch.testing.assert_close(found.double(), exact_scaled_gemm(*given), rtol=4e-3, atol=1e-5)


def int4_packed(w, tiles):
    """[columns, terms] of 4 bits in the layout of `aten._convert_weight_to_int4pack`."""
    n, k = w.shape
    w = w.view(n // 8, 8, k // (16 * tiles), tiles // 2, 2, 2, 4, 2)  # .., tile, half, lane, odd
    w = w.permute(0, 2, 1, 6, 3, 7, 4, 5).reshape(n // 8, k // (16 * tiles), 32, tiles // 2, 8)
    word = (w.long() << torch.arange(0, 32, 4)).sum(-1)
    return (word - (word >> 31 << 32)).int()


@pytest.mark.parametrize("rows, tiles, group", [(1, 8, 128), (3, 4, 32), (1, 2, 64), (2, 8, 64)])
def test_packed_for_tensor_cores(rows, tiles, group) -> None:
    """ATen has no such GEMM on a CPU."""
    n, k = 32, 256
    w, x = torch.randint(0, 16, (n, k)), numbers(BF16, rows, k)
    scales = numbers(BF16, k // group, n, 2)

    def program(x, w, s):
        return F.relu(torch._weight_int4pack_mm(x, w, group, s))

    given = x, int4_packed(w, tiles), scales
    (found,) = interpret_graph(lower_graph(capture(program, given, mode="fake")).graph, given)
    s, z = scales.double().repeat_interleave(group, 0).unbind(-1)
    torch.testing.assert_close(found.double(), F.relu(x.double() @ ((w.t() - 8) * s + z)), rtol=8e-3, atol=1e-3)


@pytest.mark.parametrize("rows, tiles, group, k", [(1, 8, 128, 512), (5, 8, 256, 1024), (1, 4, 64, 256), (1, 2, 256, 768)])
def test_packed_for_tensor_cores_by_matrix_units(monkeypatch, rows, tiles, group, k) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: True)
    n = 48
    w, x = torch.randint(0, 16, (n, k)), numbers(BF16, rows, k) * 0.1
    scales = numbers(BF16, k // group, n, 2)
    given = x, int4_packed(w, tiles), scales
    graph = lower_graph(capture(lambda x, w, s: torch._weight_int4pack_mm(x, w, group, s), given, mode="fake")).graph
    text = cuda.generate(graph, schedule_graph(graph, 8)).text
    assert "k_nibbles_bf16(" in text
    s, z = scales.double().repeat_interleave(group, 0).unbind(-1)
    exact = x.double() @ ((w.t() - 8) * s + z)
    for (found,) in (interpret_graph(graph, given), cuda.load(text, graph, False)()(*given)):
        torch.testing.assert_close(found.double(), exact, rtol=8e-3, atol=4e-3 * exact.abs().max().item())


def test_sizes_of_what_is_packed_for_tensor_cores() -> None:
    x, w, s = (torch.empty(size, device="meta", dtype=dtype) for size, dtype in
               (((1, 256), BF16), ((4, 2, 32, 4), torch.int32), ((2, 32, 2), BF16)))
    found = results(torch.ops.aten._weight_int4pack_mm.default, (x, w, 128, s), {}, torch.device("cuda"))
    assert found.shape == (1, 32) and found.dtype is BF16


def test_packed_by_the_library() -> None:
    def program(x, w, s):
        return torch._weight_int8pack_mm(x, w, s)

    x, w, s = numbers(BF16, 1, K), numbers(torch.int8, N, K), numbers(BF16, N)
    found = dynamo.compile(program, backend=interpreted)(x, w, s)
    torch.testing.assert_close(found.double(), x.double() @ w.double().t() * s, rtol=4e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_eight_bit_floats(dtype) -> None:
    def quantized(x):
        y = F.rms_norm(x, (K,))
        scale = y.abs().amax(-1, keepdim=True).float() / 448
        halved = (x * 65536).to(torch.float8_e5m2)
        return (y.float() / scale).to(torch.float8_e4m3fn), (x * 1024).to(torch.float8_e4m3fn), halved, scale

    x = numbers(dtype, 6, K)
    found, expected = dynamo.compile(quantized, backend=interpreted)(x), quantized(x)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=0.26, atol=0, equal_nan=True)
    large = expected[1].float()  # torch saturates from 2.13 on
    assert (large.isnan() | (large.abs() == 448)).any() and expected[2].isinf().any() and texts[-1].count("@triton.jit") == 1


def test_parts_of_a_gemm_are_written_by_its_kernel(monkeypatch) -> None:
    """Each part would be a kernel of its own."""
    def program(x, w, s):
        q, k, v = scaled(x, w, s).split([16, 16, 16], -1)
        return q.float().cos(), torch.cat([k.sin(), v.exp()], -1), k.float() * v.float()

    def end_sum(builder, tensor):
        if tensor.view is None:
            tensor.realize()

    monkeypatch.setattr(Builder, "end_sum", end_sum)
    given = numbers(BF16, 1, K), numbers(torch.int8, N, K), numbers(BF16, N) / 500
    found, expected = dynamo.compile(program, backend=interpreted)(*given), program(*given)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    assert texts[-1].count("tl.sum(") == 1


def test_a_scale_is_computed_after_its_maximum() -> None:
    """A launch for the maximum, which is long, one for the scale, one for what is rounded."""
    def program(x):
        scale = 448 / x.abs().amax().float().clamp(1e-12)
        return (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reciprocal()

    x = numbers(BF16, 64, 2048)
    found, expected = dynamo.compile(program, backend=interpreted)(x), program(x)
    assert torch.equal(found[0].float(), expected[0].float()) and torch.equal(found[1], expected[1])
    assert texts[-1].count("@triton.jit") == 3


def test_what_stays_with_the_library() -> None:
    many = dynamo.compile(scaled, backend=interpreted)
    x, w, s = numbers(BF16, 40, K), numbers(torch.int8, N, K), numbers(BF16, N)
    torch.testing.assert_close(many(x, w, s), scaled(x, w, s), rtol=2e-2, atol=2e-2)
    assert "aten::mm'" in texts[-1]
