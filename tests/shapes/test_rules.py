"""Shape rules against the real kernels: sizes, strides and dtypes over several layouts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.shapes.fake import FakeWorld

aten = torch.ops.aten
Make = Callable[..., torch.Tensor]


def plain(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(size, dtype=dtype)


def transposed(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if len(size) < 2:
        return torch.ones(size, dtype=dtype)
    return torch.ones((*size[:-2], size[-1], size[-2]), dtype=dtype).transpose(-1, -2)


def channels_last(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if len(size) != 4:
        return torch.ones(size, dtype=dtype)
    return torch.ones(size, dtype=dtype).contiguous(memory_format=torch.channels_last)


def sliced(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((*size[:-1], size[-1] * 2), dtype=dtype)[..., ::2] if size else plain(size, dtype)


def shuffled(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory in a random order of the axes."""
    order = random.sample(range(len(size)), len(size))
    back = [order.index(axis) for axis in range(len(size))]
    return torch.ones([size[axis] for axis in order], dtype=dtype).permute(back)


def spread(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((), dtype=dtype).expand(size)


def repeated(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones((1, *size[1:]), dtype=dtype).expand(size) if size else plain(size, dtype)


LAYOUTS = (plain, transposed, channels_last, sliced, shuffled, spread)
SIZES4 = ((2, 4, 5, 6), (1, 4, 5, 6), (2, 1, 5, 6), (2, 4, 1, 6), (2, 4, 5, 1), (2, 4, 1, 1), (3, 2, 4, 4))


def describe(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return (tuple(result.shape), tuple(result.stride()), result.dtype)
    if isinstance(result, (tuple, list)):
        return [describe(item) for item in result]
    return result


class NoRule(Exception):
    pass


class RulesOnly(FakeWorld):
    def _run_meta(self, run: Any, op: Any, *rest: Any) -> Any:
        raise NoRule(op.func)


def facts_by_rule(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    world = RulesOnly() if torch.get_default_device().type == "cpu" else FakeWorld()

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return world.from_real(value)
        return [fake(item) for item in value] if isinstance(value, list) else value

    with torch.no_grad():
        fakes = [fake(arg) for arg in args]
        return describe(world.run(op, *fakes, **{name: fake(value) for name, value in kwargs.items()}))


Case = tuple[Any, Callable[[Make], tuple[Any, ...]]]


def sweep(op: Any, arguments: Callable[[Make], tuple[Any, ...]], rounds: int = 6) -> None:
    """Compares over layouts, each argument with its own; plain layouts must have a rule."""
    for layouts in [(layout,) for layout in LAYOUTS] + [LAYOUTS] * rounds:

        def make(size: tuple[int, ...], dtype: torch.dtype = torch.float32, layouts: Any = layouts) -> torch.Tensor:
            return random.choice(layouts)(size, dtype)

        args = arguments(make)
        kwargs = args[-1] if args and isinstance(args[-1], dict) else {}
        args = args[:-1] if kwargs else args
        try:
            expected = describe(op(*args, **kwargs))
        except RuntimeError:
            assert layouts != (plain,)
            continue
        try:
            found = facts_by_rule(op, args, kwargs)
        except NoRule:
            assert layouts != (plain,), f"no rule for {op}"
            continue
        assert found == expected, (op, [describe(arg) for arg in args], kwargs)


def size4() -> tuple[int, ...]:
    return random.choice(SIZES4)


def same(*extra: Any, tensors: int = 1) -> Callable[[Make], tuple[Any, ...]]:
    """Arguments: tensors of one random size, then constants."""

    def arguments(make: Make) -> tuple[Any, ...]:
        size = random.choice((*SIZES4, (4, 5), (7,), (2, 3, 4)))
        return (*[make(size) for _ in range(tensors)], *extra)

    return arguments


ELEMENTWISE: list[Case] = [
    (aten.hardswish.default, same()),
    (aten.hardswish_backward.default, same(tensors=2)),
    (aten.hardtanh_backward.default, same(-1, 1, tensors=2)),
    (aten.hardsigmoid_backward.default, same(tensors=2)),
    (aten.leaky_relu_backward.default, same(0.1, False, tensors=2)),
    (aten.elu_backward.default, lambda make: (make((2, 4, 5, 1)), 1.0, 1.0, 1.0, False, make((2, 4, 5, 1)))),
    (aten.softplus_backward.default, same(1.0, 20.0, tensors=2)),
    (aten.floor_divide.default, same(tensors=2)),
    (aten.floor_divide.Scalar, same(2)),
    (aten._prelu_kernel.default, same(tensors=2)),
    (aten._prelu_kernel_backward.default, same(tensors=3)),
    (aten.gelu.default, same()),
    (aten.gelu_backward.default, same(tensors=2)),
    (aten.silu_backward.default, same(tensors=2)),
    (aten.mish_backward.default, same(tensors=2)),
    (aten.threshold_backward.default, same(0, tensors=2)),
    (aten.sigmoid_backward.default, same(tensors=2)),
    (aten.tanh_backward.default, same(tensors=2)),
    (aten.logit_backward.default, same(tensors=2)),
    (aten.add.Tensor, same(tensors=2)),
    (aten.addcmul.default, same(tensors=3)),
    (aten.lerp.Tensor, same(tensors=3)),
    (aten.pow.Tensor_Scalar, same(2)),
    (aten.clamp_min.default, same(2)),
    (aten.xlogy.Tensor, same(tensors=2)),
    (aten.softshrink.default, same()),
    (aten.remainder.Tensor, same(tensors=2)),
    (aten.maximum.default, same(tensors=2)),
    *[(op, same(2)) for op in (
        aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.sub.Tensor, aten.eq.Scalar, aten.lt.Scalar,
        aten.remainder.Scalar, aten.fmod.Scalar, aten.ge.Scalar, aten.rsub.Scalar, aten.xlogy.Scalar_Other,
        aten.clamp_max.default, aten.floor_divide.default, aten.leaky_relu.default, aten.add.Scalar, aten.mul.Scalar,
    )],
    *[(op, lambda make: (2, make(size4()))) for op in (aten.pow.Scalar, aten.xlogy.Scalar_Self, aten.remainder.Scalar_Tensor)],
    (aten.where.ScalarOther, lambda make: (make((2, 4, 1, 6), torch.bool), make((2, 4, 1, 6)), 1.0)),
    (aten.where.ScalarSelf, lambda make: (make((2, 4, 1, 6), torch.bool), 1.0, make((2, 4, 1, 6)))),
    (aten.clamp.default, same(0, 1)),
    (aten.clamp.Tensor, same(tensors=3)),
    (aten.div.Tensor_mode, same(2, {"rounding_mode": "floor"})),
    (aten.where.self, lambda make: (make((2, 4, 5, 6), torch.bool), make((2, 4, 5, 6)), make((2, 4, 5, 6)))),
    (aten.where.self, lambda make: (make((2, 1, 5, 6), torch.bool), make((4, 1, 6)), make((2, 4, 5, 6)))),
]


def nll(reduction: int, weighted: bool, backward: bool) -> Callable[[Make], tuple[Any, ...]]:
    def arguments(make: Make) -> tuple[Any, ...]:
        scores, target = make((4, 5)), make((4,), torch.int64)
        weight = make((5,)) if weighted else None
        if not backward:
            return (scores, target, weight, reduction, -100)
        return (make(() if reduction else (4,)), scores, target, weight, reduction, -100, torch.ones(()))

    return arguments


LOSSES: list[Case] = [
    *[(getattr(aten, name).default, same(reduction, tensors=2))
      for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss") for reduction in (0, 1, 2)],
    *[(getattr(aten, name).default, same(None, reduction, tensors=2))
      for name in ("binary_cross_entropy",) for reduction in (0, 1)],
    *[(aten.binary_cross_entropy_with_logits.default, same(None, None, reduction, tensors=2)) for reduction in (0, 1)],
    (aten.binary_cross_entropy_with_logits.default, same(0, tensors=4)),
    (aten.mse_loss_backward.default, same(0, tensors=3)),
    (aten.mse_loss_backward.default, lambda make: (make(()), make((4, 5)), make((4, 5)), 1)),
    (aten.smooth_l1_loss_backward.default, lambda make: (make(()), make((4, 5)), make((4, 5)), 1, 1.0)),
    (aten.huber_loss_backward.default, lambda make: (make(()), make((4, 5)), make((4, 5)), 1, 1.0)),
    (aten.binary_cross_entropy_backward.default, lambda make: (make(()), make((4, 5)), make((4, 5)))),
    (aten.log_sigmoid_forward.default, same()),
    (aten.log_sigmoid_backward.default, same(tensors=3)),
    *[(aten.nll_loss_forward.default, nll(reduction, reduction == 1, False)) for reduction in (0, 1, 2)],
    *[(aten.nll_loss_backward.default, nll(reduction, reduction == 1, True)) for reduction in (0, 1, 2)],
    *[(aten.nll_loss2d_forward.default,
       lambda make, reduction=reduction: (make((2, 3, 4, 5)), torch.zeros(2, 4, 5, dtype=torch.int64), None, reduction, -100))
      for reduction in (0, 1)],
]


def norm(make: Make) -> tuple[tuple[int, ...], torch.Tensor, torch.Tensor]:
    size = random.choice(((2, 4, 5, 6), (2, 4, 5), (2, 4), (3, 4, 1, 2)))
    return size, make(size), torch.ones(4)


def mask() -> list[bool]:
    return random.choice(([True] * 3, [True, False, False], [False, True, True]))


def group(make: Make) -> tuple[Any, ...]:
    size, x, one = norm(make)
    return (x, one, one, size[0], 4, x.numel() // size[0] // 4, 2, 1e-5)


def group_backward(make: Make) -> tuple[Any, ...]:
    size, x, one = norm(make)
    moments = torch.ones(size[0], 2)
    # its kernel crashes where the gradient has another layout, or for some masks
    return (torch.ones_like(x), x, moments, moments, one, size[0], 4, x.numel() // size[0] // 4, 2, [True] * 3)


def batch(make: Make) -> tuple[Any, ...]:
    _, x, one = norm(make)
    return (x, one, one, one.clone(), one.clone(), True, 0.1, 1e-5)


def batch_backward(make: Make) -> tuple[Any, ...]:
    size, x, one = norm(make)
    return (make(size), x, one, one, one, one, one, random.random() < 0.5, 1e-5, mask())


def layer_backward(make: Make) -> tuple[Any, ...]:
    moments, one = torch.ones(2, 4, 1), torch.ones(6)
    if random.random() < 0.3:
        return (make((2, 4, 6)), make((2, 4, 6)), [6], moments, moments, None, None, [True, False, False])
    return (make((2, 4, 6)), make((2, 4, 6)), [6], moments, moments, one, one, mask())


NORMALIZATION: list[Case] = [
    (aten.native_group_norm.default, group),
    (aten.native_group_norm_backward.default, group_backward),
    (aten.native_batch_norm.default, batch),
    (aten._native_batch_norm_legit_functional.default, batch),
    (aten.native_batch_norm_backward.default, batch_backward),
    (aten.native_layer_norm_backward.default, layer_backward),
    (aten.native_layer_norm.default, lambda make: (make((2, 4, 6)), [6], torch.ones(6), torch.ones(6), 1e-5)),
]


def transposed_convolution(make: Make) -> tuple[Any, ...]:
    groups, extra = random.choice((1, 2)), random.choice((0, 1))
    weight = make((4, random.choice((1, 3)), 2, random.choice((1, 3))))
    return (make((2, 4, 5, 6)), weight, None, [2, 1 + extra], [0, random.choice((0, 1))], [1, 1], True, [0, extra], groups)


def convolution(make: Make) -> tuple[Any, ...]:
    weight = make((random.choice((1, 3)), 4, random.choice((1, 2)), 2))
    return (make((2, 4, 5, 6)), weight, None, [1, 2], [0, 1], [1, 1], False, [0, 0], 1)


def convolution_backward(make: Make) -> tuple[Any, ...]:
    args = random.choice((convolution, transposed_convolution))(make)
    grad = make(tuple(aten.convolution(*args).shape))
    return (grad, *args[:2], [args[1].shape[1] * args[8] if args[6] else args[1].shape[0]], *args[3:], mask())


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("flag", (False, True), ids=("convolution", "transposed"))
@pytest.mark.parametrize("images", (1, 2))
def test_a_convolution_is_channels_last_where_an_operand_is(
    dtype: torch.dtype, axes: int, flag: bool, images: int
) -> None:
    last = torch.channels_last if axes == 2 else torch.channels_last_3d
    for groups, *layouts in itertools.product((1, 2), *[(torch.contiguous_format, last)] * 2):
        size = (4, 4 // groups) + (2,) * axes
        x = torch.randn((images, 4) + (6,) * axes, dtype=dtype).to(memory_format=layouts[0])
        weight = torch.randn(size, dtype=dtype).to(memory_format=layouts[1])
        args = (x, weight, None, [2] * axes, [1] * axes, [1] * axes, flag, [0] * axes, groups)
        expected = describe(aten.convolution(*args))
        assert facts_by_rule(aten.convolution.default, args, {}) == expected, (groups, layouts)


def max_pool_backward(make: Make) -> tuple[Any, ...]:
    x = make((2, 4, 5, 6))
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    values, at = aten.max_pool2d_with_indices(x, *window)
    return (make(tuple(values.shape)), x, *window, at)


WINDOWS: list[Case] = [
    (aten.convolution.default, transposed_convolution),
    (aten.convolution_backward.default, convolution_backward),
    (aten.max_pool2d_with_indices_backward.default, max_pool_backward),
    (aten.avg_pool2d_backward.default,
     lambda make: (make((2, 4, 2, 3)), make((2, 4, 5, 6)), [2, 2], [2, 2], [0, 0], False, True, None)),
    (aten._adaptive_avg_pool2d_backward.default, lambda make: (make((2, 4, 1, 1)), make((2, 4, 5, 6)))),
]


REDUCTIONS: list[Case] = [
    *[(op, lambda make: (make(size4()), random.randrange(4), False))
      for op in (aten._softmax.default, aten._log_softmax.default)],
    *[(op, lambda make: (*(make((2, 4, 5, 6)) for _ in range(2)), random.randrange(4), torch.float32))
      for op in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)],
]


def index(size: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int64)


def matrix(*extra: Any) -> Callable[[Make], tuple[Any, ...]]:
    return lambda make: (make((2, 4, 5, 6)), *extra)


MEASURED: list[Case] = [
    (aten.flip.default, matrix([1, 2])),
    (aten.roll.default, matrix([1], [1])),
    (aten.stack.default, lambda make: ([make((2, 4, 5, 6)), make((2, 4, 5, 6))], 1)),
    (aten.cumsum.default, matrix(1)),
    (aten.cumprod.default, matrix(1)),
    (aten.sort.default, matrix(1)),
    (aten.sort.stable, matrix({"stable": True, "dim": 1})),
    (aten.topk.default, matrix(2)),
    (aten.index.Tensor, matrix([None, index((3, 1)), index((2,))])),
    (aten.index_put.default, matrix([None, index((3,))], torch.ones(()))),
    (aten.index_add.default, lambda make: (make((2, 4)), 1, index((3,)), make((2, 3)))),
    (aten.index_copy.default, lambda make: (make((2, 4)), 1, index((1,)), make((2, 1)))),
    (aten.index_fill.int_Scalar, matrix(1, index((3,)), 2.0)),
    (aten.scatter.src, lambda make: (make((2, 4)), 1, index((2, 4)), make((2, 4)))),
    (aten.scatter.value, lambda make: (make((2, 4)), 1, index((2, 3)), 1.0)),
    (aten.scatter_add.default, lambda make: (make((2, 4)), 1, index((2, 4)), make((2, 4)))),
    (aten.fill.Scalar, matrix(1.0)),
    (aten.zero.default, matrix()),
    (aten.polar.default, same(tensors=2)),
    (aten.complex.default, same(tensors=2)),
    (aten.dot.default, lambda make: (make((5,)), make((5,)))),
    (aten.repeat.default, matrix([1, 2, 1, 1])),
    (aten.pixel_shuffle.default, matrix(2)),
    (aten.im2col.default, matrix([2, 2], [1, 1], [0, 0], [1, 1])),
    (aten.reflection_pad2d.default, matrix([1, 1, 1, 1])),
    (aten.upsample_nearest2d.default, matrix([10, 12])),
    (aten.upsample_nearest2d.vec, matrix(None, [2.0, 2.0])),
    (aten.upsample_bilinear2d.vec, matrix(None, False, [2.0, 2.0])),
    (aten.glu.default, matrix(1)),
    (aten.glu_backward.default, lambda make: (make((2, 2, 5, 6)), make((2, 4, 5, 6)), 1)),
    (aten.select_backward.default, lambda make: (make((2, 5, 6)), [2, 4, 5, 6], 1, 0)),
]


def check(cases: list[Case]) -> list[Any]:
    return [pytest.param(op, arguments, id=f"{op}-{number}") for number, (op, arguments) in enumerate(cases)]


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(ELEMENTWISE))
def test_elementwise(op: Any, arguments: Any) -> None:
    for _ in range(4):
        sweep(op, arguments)


@pytest.mark.draws
@pytest.mark.parametrize("op", [
    aten.add.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.logical_and.default, aten.pow.Tensor_Tensor, aten.addcmul.default,
    aten.where.self, aten.clamp.Tensor,
])  # fmt: skip
def test_operands_of_several_dtypes(op: Any) -> None:
    """A CPU kernel computes on copies in the common dtype, which have a layout of their own."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int32)
    tensors = sum(isinstance(each.type, torch.TensorType) for each in op._schema.arguments)

    def arguments(make: Make) -> tuple[Any, ...]:
        size = random.choice(((4, 5), (2, 3, 4), (17, 16, 1), (2, 3, 4, 5)))
        found = [random.choice((repeated, make))(size, random.choice(dtypes)) for _ in range(max(tensors, 2))]
        return (found[0] > 0, *found[1:]) if op is aten.where.self else tuple(found)

    for _ in range(20):
        sweep(op, arguments)


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(LOSSES))
def test_losses(op: Any, arguments: Any) -> None:
    for _ in range(3):
        sweep(op, arguments)


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(NORMALIZATION))
def test_normalization(op: Any, arguments: Any) -> None:
    for _ in range(4):
        sweep(op, arguments)


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(WINDOWS))
def test_windows(op: Any, arguments: Any) -> None:
    for _ in range(4):
        sweep(op, arguments)


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(REDUCTIONS))
def test_reductions(op: Any, arguments: Any) -> None:
    for _ in range(4):
        sweep(op, arguments)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_softmax_of_channels_last_images_is_row_major(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.softmax(1)
        return y, y.view(-1, 3) * 2

    x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    for found, wanted in zip(dynamo.compile(f, backend=backend, fullgraph=True)(x), f(x)):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)


@pytest.mark.draws
@pytest.mark.parametrize("op,arguments", check(MEASURED))
def test_measured(op: Any, arguments: Any) -> None:
    for _ in range(2):
        sweep(op, arguments)


def test_measured_rules_leave_large_results_and_masks_alone() -> None:
    x = torch.zeros(4, 4)
    with pytest.raises(NoRule):
        facts_by_rule(aten.repeat.default, (x, [1 << 16, 1 << 8]), {})
    with pytest.raises(NoRule):
        facts_by_rule(aten.index_put.default, (x, [x > 0], torch.ones(3)), {})


def test_measured_rules_raise_what_eager_raises() -> None:
    args = (torch.zeros(2, 4), 1, torch.zeros(3, 4, dtype=torch.int64), torch.zeros(2, 4))
    with pytest.raises(RuntimeError) as eager:
        aten.scatter.src(*args)
    with pytest.raises(RuntimeError) as ours:
        facts_by_rule(aten.scatter.src, args, {})
    assert str(eager.value) == str(ours.value)


def queries() -> list[torch.Tensor]:
    """Queries in all orders of the axes that the kernel takes, with each set of them expanded."""
    size, found = (2, 3, 5, 8), []
    for order in itertools.permutations(range(3)):
        for spread_axes in itertools.product((False, True), repeat=3):
            stored = [1 if spread_axes[axis] else size[axis] for axis in order]
            back = [order.index(axis) for axis in range(3)]
            found.append(torch.randn(*stored, 8).permute(*back, 3).expand(size))
            found.append(torch.randn(*stored, 16)[..., :8].permute(*back, 3).expand(size))
    return found


def test_attention_of_queries_in_all_layouts() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    key = torch.randn(2, 3, 4, 8)
    for query in queries():
        assert facts_by_rule(op, (query, key, key), {}) == describe(op(query, key, key)), query.stride()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_of_an_attention_with_queries_that_all_rows_share(backend: str) -> None:
    def attend(query: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        shared = query.expand(*states.shape[:-2], -1, -1)
        first, *_, last = F.scaled_dot_product_attention(shared, states, states).unbind(-2)
        return first.sin() * last

    query = torch.randn(3, 8, requires_grad=True)
    states = torch.randn(2, 5, 4, 8, requires_grad=True)
    compiled = dynamo.compile(attend, backend=backend)
    found, wanted = (torch.autograd.grad(f(query, states).sum(), (query, states)) for f in (compiled, attend))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("size", [(2, 12, 4, 3), (3, 12, 1, 2), (3, 12, 2, 1), (2, 12, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype, of_weight", [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_a_group_norm_keeps_how_images_lie(size: tuple[int, ...], dtype: Any, of_weight: Any, dynamic: Any) -> None:
    """Torch's fakes are row-major from 2.14 on."""
    last = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    x, weight = torch.randn(size, dtype=dtype).to(memory_format=last), torch.ones(12, dtype=of_weight)

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return torch.native_group_norm(x * 2, weight, None, size[0], 12, x[0, 0].numel(), 6, 1e-5)

    dynamo.reset()
    want, got = program(x, weight), dynamo.compile(program, backend="aot_eager", dynamic=dynamic)(x, weight)
    assert [(t.stride(), t.dtype) for t in got] == [(t.stride(), t.dtype) for t in want]
    found = dynamo.compile(lambda x: F.silu(F.group_norm(x + 1, 6)), dynamic=dynamic)(x)
    assert found.stride() == x.stride()
