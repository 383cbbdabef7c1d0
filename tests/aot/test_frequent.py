"""Own decompositions against the real kernels, in float64 on random data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import dynamo
from dynamo.aot.decompositions import overload
from dynamo.aot.frequent import FREQUENT


def r(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def positive(*size: int) -> torch.Tensor:
    return torch.rand(size, dtype=torch.float64) + 0.5


TARGET = torch.tensor([0, 2, -100, 4])
INDEX = torch.tensor([[0, 3, 3], [1, 0, 5]])


def total(weight: torch.Tensor | None) -> torch.Tensor:
    seen = TARGET[TARGET != -100]
    return torch.tensor(float(len(seen))).double() if weight is None else weight[seen].sum()


def cases() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    found: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def case(name: str, *args: Any, **kwargs: Any) -> None:
        found.append((name + ".default", args, kwargs))

    x, weight = r(4, 5), positive(5)
    for reduction in (0, 1, 2):
        case("mse_loss", x, r(4, 5), reduction)
        case("mse_loss_backward", r(4, 5) if reduction == 0 else r(), x, r(4, 5), reduction)
        for w in (None, weight):
            case("nll_loss_forward", x, TARGET, w, reduction, -100)
            grad = r(4) if reduction == 0 else r()
            case("nll_loss_backward", grad, x, TARGET, w, reduction, -100, total(w))
            case("nll_loss_backward", r(), r(5), TARGET[0], w, reduction, -100, total(w))
            pixels, classes = r(2, 5, 2, 1), TARGET.view(2, 2, 1)
            grad = r(2, 2, 1) if reduction == 0 else r()
            case("nll_loss2d_backward", grad, pixels, classes, w, reduction, -100, total(w))
    case("gelu_backward", r(4, 5), x)
    case("gelu_backward", r(4, 5), x, approximate="tanh")
    for name in ("silu_backward", "sigmoid_backward", "tanh_backward"):
        case(name, r(4, 5), x)
    case("hardswish_backward", r(4, 5), 4 * x)
    case("hardswish_backward", r(2), torch.tensor([3.0, -3.0]).double())
    case("threshold_backward", r(4, 5), x.relu(), 0)
    case("leaky_relu_backward", r(4, 5), x, 0.1, False)
    case("hardtanh_backward", r(4, 5), x, -0.5, 0.5)
    for dim in (0, 1, -1):
        case("_softmax_backward_data", r(4, 5), x.softmax(dim), dim, torch.float64)
        case("_log_softmax_backward_data", r(4, 5), x.log_softmax(dim), dim, torch.float64)
    for padding in (-1, 3):
        case("embedding_dense_backward", r(2, 3, 4), INDEX, 6, padding, False)
    case("native_dropout_backward", r(4, 5), x > 0, 1.25)
    image, one = r(2, 4, 3, 5), positive(4)
    for affine in (one, None):
        bias = None if affine is None else r(4)
        case("_native_batch_norm_legit_functional", image, affine, bias, r(4), positive(4), True, 0.1, 1e-5)
        case("native_batch_norm", image, affine, bias, None, None, True, 0.1, 1e-5)
        case("native_batch_norm", r(1, 4, 9), affine, bias, None, None, True, 0.0, 1e-6)
        for training in (True, False):
            moments = (image.mean((0, 2, 3)), image.var((0, 2, 3), correction=0).add(1e-5).rsqrt())
            case("native_batch_norm_backward", r(2, 4, 3, 5), image, affine, r(4), positive(4), *moments, training, 1e-5,
                 [True, affine is not None, affine is not None])
        stats = torch.ops.aten.native_group_norm(image, affine, bias, 2, 4, 15, 2, 1e-5)[1:]
        case("native_group_norm_backward", r(2, 4, 3, 5), image, *stats, affine, 2, 4, 15, 2,
             [True, affine is not None, affine is not None])
    for shape in ([5], [3, 5]):
        gain = positive(*shape)
        _, *stats = torch.ops.aten.native_layer_norm(image, shape, gain, gain, 1e-5)
        for mask in ([True] * 3, [True, False, False]):
            case("native_layer_norm_backward", r(2, 4, 3, 5), image, shape, *stats, gain, gain, mask)
        case("native_layer_norm_backward", r(2, 4, 3, 5), image, shape, *stats, None, None, [True, False, False])
    return found


CASES = cases()


@pytest.mark.parametrize("name,args,kwargs", CASES, ids=[f"{case[0]}-{at}" for at, case in enumerate(CASES)])
def test_agrees_with_the_kernel(name: str, args: Any, kwargs: Any) -> None:
    expected = overload(name)(*args, **kwargs)
    found = FREQUENT[name](*args, **kwargs)
    assert_close(found, expected, rtol=1e-11, atol=1e-12)
    strides = [item.stride() for item in (found if isinstance(found, tuple) else (found,)) if item is not None]
    assert strides == [item.stride() for item in (expected if isinstance(expected, tuple) else (expected,)) if item is not None]


def test_every_decomposition_is_checked() -> None:
    on_gpus = {"convolution_backward.default"}  # below
    assert {name for name, *_ in CASES} | on_gpus == set(FREQUENT)


def test_narrow_floats_go_elsewhere() -> None:
    half = torch.ones(3, dtype=torch.float16)
    assert FREQUENT["silu_backward.default"](half, half) is NotImplemented


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 2, 2)])
def test_a_gradient_of_nan_reaches_the_chosen_class_only(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, 3, (shape[:1] if len(shape) > 1 else ()) + shape[2:])

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.nll_loss(x, target)

    grads = []
    for call in (program, dynamo.compile(program)):
        (grad,) = torch.autograd.grad(call(x), x, torch.tensor(float("nan")))
        grads.append(grad)
    torch.testing.assert_close(grads[0], grads[1], equal_nan=True)
    assert int(grads[1].isnan().sum()) == target.numel()


def test_the_gradient_of_a_bias_is_a_sum_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which stands for one; the numbers are those of a GPU's test."""
    rule = FREQUENT["convolution_backward.default"]
    grad, x, weight = torch.randn(2, 6, 4, 5), torch.randn(2, 3, 6, 7), torch.randn(6, 3, 3, 3)
    form = ([6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert rule(grad, x, weight, *form, [True] * 3) is NotImplemented
    there = [each.to("meta") for each in (grad, x, weight)]
    assert rule(*there, *form, [True, True, False]) is NotImplemented
    asked = []
    original = torch.ops.aten.convolution_backward.default
    monkeypatch.setattr(torch.ops.aten.convolution_backward, "default", lambda *args: (asked.append(args[-1]), original(*args))[1])
    found = rule(*there, *form, [True] * 3)
    assert [each.shape for each in found] == [x.shape, weight.shape, (6,)] and asked == [[True, True, False]]
    assert [each is None for each in rule(*there, *form, [False, False, True])] == [True, True, False] and len(asked) == 1
