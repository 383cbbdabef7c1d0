"""Half precision in strips: every number, loops of all lengths, and accesses that must stay apart."""

from __future__ import annotations

import pytest
import torch
from kernel_support import Runner, interpret_kernel

import dynamo
from inductor.codegen.cpp.kernel import print_kernel
from inductor.ir.body import trace_body
from inductor.ir.graph import Layout
from inductor.scheduler.schedule import Kernel

H, B, F = torch.float16, torch.bfloat16, torch.float32


def kernel_of(name: str, ranges: tuple[int, ...], body) -> Kernel:
    return Kernel(name, (), (trace_body(ranges, (), body),))


def text_of(kernel: Kernel, storages: dict[str, torch.Tensor]) -> str:
    layouts = {
        n: Layout(t.device, t.dtype, tuple(t.shape), tuple(t.stride())) for n, t in storages.items()
    }
    return print_kernel(kernel, layouts, 1).text


def every_half() -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(H)


def test_every_half_is_widened_as_eager_does_it(runner: Runner) -> None:
    x = every_half()

    def body(ops, i, r):
        ops.store("out", i[0], ops.to_dtype(ops.load("x", i[0], H), F))

    kernel = kernel_of("widen", (len(x),), body)
    storages = {"x": x, "out": torch.zeros(len(x))}
    assert "k_widen_strip" in text_of(kernel, storages)
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["out"].view(torch.int32)[~x.isnan()],
                       x.float().view(torch.int32)[~x.isnan()])  # fmt: skip
    assert storages["out"].isnan().equal(x.isnan())


def test_floats_are_narrowed_to_the_nearest_even(runner: Runner) -> None:
    exact = every_half().float()
    ties = (exact[:-1] + exact[1:]) / 2
    wild = torch.randint(-(1 << 31), (1 << 31) - 1, (70001,), dtype=torch.int32).view(F)
    x = torch.cat([exact, ties, ties.nextafter(torch.tensor(0.0)), torch.randn(999) * 1e-7, wild])

    def body(ops, i, r):
        ops.store("out", i[0], ops.to_dtype(ops.load("x", i[0], F), H))

    kernel = kernel_of("narrow", (len(x),), body)
    storages = {"x": x, "out": torch.zeros(len(x), dtype=H)}
    assert "k_narrow_strip" in text_of(kernel, storages)
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["out"].view(torch.int16)[~x.isnan()],
                       x.half().view(torch.int16)[~x.isnan()])  # fmt: skip
    assert storages["out"].isnan().equal(x.isnan())


def test_bfloat16_is_converted_in_strips_where_functions_are_computed(runner: Runner) -> None:
    """All numbers, ties and denormals included, come through a strip as eager converts them."""
    exact = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(B)
    wide = exact.float()
    ties = (wide[:-1] + wide[1:]) / 2
    wild = torch.randint(-(1 << 31), (1 << 31) - 1, (70001,), dtype=torch.int32).view(F)
    denormal = torch.randint(1, 1 << 23, (5000,), dtype=torch.int32).view(F)
    x = torch.cat([wide, ties, ties.nextafter(torch.tensor(0.0)), wild, denormal, -denormal])
    loaded = x.to(B)

    def body(ops, i, r):
        ops.store("narrowed", i[0], ops.to_dtype(ops.load("x", i[0], F), B))
        value = ops.to_dtype(ops.load("loaded", i[0], B), F)
        ops.store("widened", i[0], value)
        ops.store("sine", i[0], ops.to_dtype(ops.sin(value), B))

    kernel = kernel_of("brain", (len(x),), body)
    storages = {"x": x, "loaded": loaded, "widened": torch.zeros(len(x))}
    storages |= {name: torch.zeros(len(x), dtype=B) for name in ("narrowed", "sine")}
    assert text_of(kernel, storages).count("_strip") == 6  # whole strips, and what is left over
    runner.compile(kernel, storages)(storages)
    number = ~x.isnan()
    for name, want in (("narrowed", x.to(B)), ("widened", loaded.float())):
        bits = torch.int16 if want.dtype is B else torch.int32
        assert torch.equal(storages[name].view(bits)[number], want.view(bits)[number])
        assert storages[name].isnan().equal(~number)
    torch.testing.assert_close(storages["sine"], loaded.sin(), equal_nan=True)


def test_light_loops_over_bfloat16_are_left_to_the_compiler(runner: Runner) -> None:
    x = torch.randn(300).bfloat16()

    def body(ops, i, r):
        value = ops.to_dtype(ops.load("x", i[0], B), F)
        ops.store("out", i[0], ops.to_dtype(ops.add(value, value), B))

    kernel = kernel_of("light", (300,), body)
    storages = {"x": x, "out": torch.zeros_like(x)}
    assert "_strip" not in text_of(kernel, storages)
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["out"], x + x)


@pytest.mark.parametrize("count", [64, 65, 255, 256, 257, 1037])
def test_all_lengths_and_nothing_behind_the_end(runner: Runner, count: int) -> None:
    x, y = torch.randn(3, count + 5).half(), torch.randn(count).half()

    def body(ops, i, r):
        a = ops.to_dtype(ops.load("x", i[0] * (count + 5) + i[1] + 2, H), F)
        b = ops.to_dtype(ops.load("y", i[1], H), F)
        ops.store("out", i[0] * (count + 7) + i[1] + 3, ops.to_dtype(ops.mul(a, b), H))

    kernel = kernel_of(f"lengths{count}", (3, count), body)
    storages = {"x": x, "y": y, "out": torch.full((3, count + 7), 9.0).half()}
    assert {"k_widen_strip", "k_narrow_strip"} <= set(text_of(kernel, storages).replace("(", " ").split())
    runner.compile(kernel, storages)(storages)
    expected = torch.full((3, count + 7), 9.0).half()
    expected[:, 3 : 3 + count] = x[:, 2 : 2 + count] * y
    assert torch.equal(storages["out"], expected)


@pytest.mark.parametrize("count", [15, 16, 17, 64, 255, 512, 1037, 5000])
@pytest.mark.parametrize("dtype", [H, B])
def test_rows_are_widened_in_front_of_their_sums(
    runner: Runner, count: int, dtype: torch.dtype
) -> None:
    x, y = torch.randn(3, count + 5).to(dtype), torch.randn(count).to(dtype)

    def body(ops, i, r):
        a = ops.to_dtype(ops.load("x", i[0] * (count + 5) + r[0] + 2, dtype), F)
        b = ops.to_dtype(ops.load("y", r[0], dtype), F)
        ops.store("total", i[0], ops.reduction("sum", ops.mul(a, ops.exp(b))))
        ops.store("top", i[0], ops.reduction("max", a))

    kernel = Kernel(f"rows{count}_{str(dtype)[6:]}", (), (trace_body((3,), (count,), body),))
    storages = {"x": x, "y": y, "total": torch.zeros(3), "top": torch.zeros(3)}
    assert ("k_widen_strip" in text_of(kernel, storages)) == (count >= 16)
    runner.compile(kernel, storages)(storages)
    rows = x[:, 2 : 2 + count].double()
    assert torch.equal(storages["top"], rows.amax(1).float())
    exact = (rows * y.double().exp()).sum(1)
    torch.testing.assert_close(storages["total"].double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [15, 16, 48, 256, 1037, 5000])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("other", [B, F])
def test_bytes_are_widened_in_front_of_their_sums(
    runner: Runner, count: int, dtype: torch.dtype, other: torch.dtype
) -> None:
    least = -128 if dtype is torch.int8 else 0
    x = torch.randint(least, least + 256, (3, count + 5), dtype=dtype)
    x[:, 2], x[:, 3] = least, least + 255
    y = torch.randn(count).to(other)

    def body(ops, i, r):
        a = ops.to_dtype(ops.load("x", i[0] * (count + 5) + r[0] + 2, dtype), F)
        b = ops.load("y", r[0], other)
        b = b if other is F else ops.to_dtype(b, F)
        ops.store("total", i[0], ops.reduction("sum", ops.mul(a, b)))
        ops.store("top", i[0], ops.reduction("max", a))

    name = f"bytes{count}_{str(dtype)[6:]}_{str(other)[6:]}"
    kernel = Kernel(name, (), (trace_body((3,), (count,), body),))
    storages = {"x": x, "y": y, "total": torch.zeros(3), "top": torch.zeros(3)}
    assert ("k_widen_strip" in text_of(kernel, storages)) == (count >= 16)
    runner.compile(kernel, storages)(storages)
    rows = x[:, 2 : 2 + count].double()
    assert torch.equal(storages["top"], rows.amax(1).float())
    torch.testing.assert_close(storages["total"].double(), (rows * y.double()).sum(1),
                               rtol=1e-5, atol=1e-5 * 128 * count)  # fmt: skip


def test_a_value_of_the_same_stage_is_read_after_it_was_written(runner: Runner) -> None:
    """`buf` is stored and loaded again, `x` is loaded and then overwritten."""
    x = torch.randn(500).half()

    def body(ops, i, r):
        a = ops.to_dtype(ops.load("x", i[0], H), F)
        ops.store("buf", i[0], ops.to_dtype(ops.add(a, a), H))
        again = ops.to_dtype(ops.load("buf", i[0], H), F)
        ops.store("x", i[0], ops.to_dtype(ops.mul(again, again), H))

    kernel = kernel_of("ordered", (500,), body)
    storages = {"x": x, "buf": torch.zeros(500, dtype=H)}
    expected = {n: t.clone() for n, t in storages.items()}
    interpret_kernel(kernel, expected)
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["x"], expected["x"])
    assert torch.equal(storages["buf"], expected["buf"])


def test_what_is_not_contiguous_masked_or_moved_stays_in_the_loop(runner: Runner) -> None:
    x = torch.randn(300).half()

    def body(ops, i, r):
        value = ops.load("x", 299 - i[0], H)
        ops.store("moved", i[0], ops.load("x", i[0], H))
        ops.store("out", 2 * i[0], ops.to_dtype(ops.exp(ops.to_dtype(value, F)), H))

    kernel = kernel_of("apart", (300,), body)
    storages = {"x": x, "moved": torch.zeros(300, dtype=H), "out": torch.zeros(600, dtype=H)}
    assert "_strip" not in text_of(kernel, storages)
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["moved"], x)
    torch.testing.assert_close(storages["out"][::2], x.flip(0).exp())


def test_a_compiled_function_in_place_and_with_other_dtypes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        s = (x + y).sigmoid()
        return s, s.float() + z, torch.where(s > 0.5, x, y), (s.double() * z).half()

    x, y, z = torch.randn(7, 331).half(), torch.randn(331).half(), torch.randn(7, 331).bfloat16()
    mine, theirs = x.clone(), x.clone()
    found, expected = dynamo.compile(f)(mine, y, z), f(theirs, y, z)
    assert torch.equal(mine, theirs)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-3)
