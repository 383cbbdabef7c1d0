"""Numpy arrays inside of compiled functions, against numpy itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import dynamo

# Expressions in `a`, an array of two rows and three columns. One line is one function.
EXPRESSIONS = """
a + 1, a * 2, 2 - a, a / 2, 1 / a, a ** 2, a + True, a * np.float32(2), a + np.int64(3), -a, +a, abs(a)
a - 1.5, np.float64(1) - a, a < 1, a == 0, 1.5 >= a, a != 2, a == a[0], a.sum() * 2, a.mean() * a
a.sum(0), a.sum(axis=1, keepdims=True), np.sum(a), a.mean(), a.mean(-1), a.std(), a.var(0), np.var(a, ddof=1)
a.max(), a.min(1), np.amax(a, 0), a.all(), a.any(0), a.prod(), a.prod(1), a.argmax(), a.argmin(0)
a.reshape(-1), a.reshape(3, 2, 1), a.T, a.T.reshape(-1), a.ravel(), a.flatten(), a.transpose(1, 0)
a[None].squeeze(0), np.expand_dims(a, 1)
a.copy(), a.T.copy(), np.array(a), np.asarray(a)
a.astype(np.float32), a.astype(float), a.astype("int32"), a.astype(bool), np.array(a, dtype=float)
np.stack([a, a]), np.concatenate([a, a * 2], 1), np.where(a > 0, a, 0), np.where(a > 0, a, a * 2.5), np.where(a, 1, 2)
a @ a.T, a[0] @ a[1], np.clip(a, 0, 1), a.clip(0, None)
np.zeros_like(a), np.ones_like(a), np.zeros(3) + a, np.arange(3) * a, np.array([1.5, 2, 3]) * a
np.sqrt(a), np.exp(a), np.sin(a), np.tanh(a), np.isfinite(a), np.square(a), np.logical_not(a), np.deg2rad(a)
np.maximum(a, 1), np.minimum(a[0], a), np.arctan2(a, 2), np.copysign(a, -1), np.hypot(a, a)
a[0], a[0, 1], a[-1], a[:, 1], a[::2], a[..., 0], a[[1, 0]], a[1, [0, 2]], [row.sum() for row in a], len(a)
np.meshgrid(a[0], a[:, 0]), np.meshgrid(a[0], a[1], indexing="ij"), np.array([a, a * 2]), np.array([[a[0]], [a[1]]])
np.array([a.max(), 2.0]), np.array((a, a), dtype=np.float32), np.asarray(a) is a, np.vstack([a, a]), np.hstack([a, a])
np.column_stack([a[0], a[1]]), np.tile(a, 2), np.tile(a, (2, 1)), np.repeat(a, 2), a.repeat(3, 1), np.full_like(a, 3)
np.outer(a, a[0]), np.roll(a, 1), np.roll(a, 2, axis=1), np.sort(a), np.sort(a, 0), np.cumsum(a), a.cumsum(1), np.diff(a)
np.fft.fftshift(a), np.fft.ifftshift(a), np.fft.ifftshift(a, axes=1), np.moveaxis(a, 0, 1), a.swapaxes(0, 1)
np.tril(a), np.triu(a, 1), np.trace(a), np.take_along_axis(a, np.array([[0], [-1]]), 1), a.real + a.imag, a.real is a
np.linalg.norm(a), np.linalg.norm(a, axis=0), np.linalg.norm(a, 1, axis=1), np.linalg.norm(a, np.inf, axis=1, keepdims=True)
np.argsort(a), a.argsort(0), np.argsort(a, None), np.argsort(a, kind="stable"), np.argpartition(a, 1), a.argpartition(-1, axis=0), np.take_along_axis(a, np.argsort(a), 1)
np.einsum("ij->i", a), np.einsum("ij,kj->ik", a, a), np.einsum("ij, ij", a, a), np.einsum("ji", a), np.einsum("...j,j", a, a[0]), np.einsum("ij,jk,k", a, a.T, a[:, 0], optimize=True)
np.einsum(a, [1, 0]), np.einsum(a, [0, 1], a, [2, 1], [2, 0]), np.einsum("ii->i", a[:, :2]), np.einsum("ij,i->", a, a[:, 1]), np.einsum(a, [..., 1], [1, ...])
np.inner(a, a), np.vdot(a, a), np.tensordot(a, a.T, 1), np.tensordot(a, a, ([0, 1], [0, 1])), np.tensordot(a, a, axes=(0, 0)), np.kron(a, a[0])
np.ptp(a), np.ptp(a, 1), np.nansum(a), np.nansum(a, 0), np.count_nonzero(a, axis=0), np.average(a), np.average(a, axis=1)
a.shape, a.ndim, a.size, a.nbytes, a.dtype == np.float32, a.dtype.name, isinstance(a, np.ndarray)
torch.from_numpy(a), torch.as_tensor(a), torch.tensor(a), torch.tensor(a.T), torch.as_tensor(a, dtype=torch.float64)
""".strip().splitlines()
# Statements that change `a`; b is what they leave.
STATEMENTS = """
a += 1; a *= 2
a += a[0]; a[1:] += a[:-1]
a[0] = 1; a[:, 0] = 2; a[0, 1] = a.max()
a[a > 0] = 0; a[[0, 1]] = 3
a[0], a[1] = a[1], a[0]
b = a[0]; b[1] = 5; a[0, 0] = b[1]
b = a.reshape(-1); b[0] = 4; a[0, 1] = 2
b = a.T; b += 1
b = a.flatten(); b[0] = 9
a.fill(2); np.add(a, 1, out=a)
t = torch.from_numpy(a); t.mul_(2); a[0] = 1; b = t * 2
b = np.asarray(a); b[0] = 1; c = np.array(a); c[1] = 7
b = torch.tensor(a); b[0] = 1
s = a.sum(); s += 1; b = s
""".strip().splitlines()
# What is not captured, for some dtype at least: numpy itself runs.
LEFT_TO_NUMPY = """
a // 2, a % 3, 2 ** abs(a), a[::-1], a[a > 0], a.round(1), np.median(a), np.count_nonzero(a), a.item(0), a.tolist()
a % np.int64(3), a // np.int32(2), a % np.int16(5), abs(a) ** np.int64(3), a % np.uint8(7), a % np.int64(0)
np.broadcast_to(a, (2, 2, 3)), a.diagonal(), np.average(a, weights=a), divmod(a, 2), max(a[0]), a + 300, a.clip(-1, 3)
np.random.default_rng(0).random(2) + a[0, 0], np.split(a, 2), a.view(), np.float64(a.sum()), str(a.shape), f"{a.sum():.2f}"
np.swapaxes(a, 0, 1), np.moveaxis(a, 0, 1), np.repeat(a, 2), np.tile(a, 2), np.roll(a, 1)
np.tril(a), np.triu(a, 1), np.outer(a[0], a[1]), np.sort(a), np.sort(a, 0), np.full_like(a, 3)
""".strip().splitlines()
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "float16", "complex64",
          "uint16", ">f4"]


def array_of(dtype: str, order: str = "C") -> Any:
    made: Any
    kind, draw = np.dtype(dtype).kind, np.random.default_rng(random.randrange(2**32))
    if kind == "b":
        made = draw.integers(0, 2, (2, 3))
    elif kind in "iu":
        made = draw.integers(0 if kind == "u" else -99, 99, (2, 3))
    else:
        made = draw.normal(size=(2, 3))
    return np.array(made.astype(dtype), order=order)  # type: ignore[call-overload]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, BaseException):
        return type(a) is type(b) and str(a) == str(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.stride() == b.stride() and same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray | np.generic):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if isinstance(a, np.ndarray) and a.size and any(
            n > 1 and one != two for n, one, two in zip(a.shape, a.strides, b.strides, strict=True)
        ):
            return False
        places = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5}
        close = places.get(a.dtype.name)
        if close is None:
            return bool(np.array_equal(a, b))
        return bool(np.allclose(a, b, rtol=close, atol=close, equal_nan=True))
    return repr(a) == repr(b)


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        result = f(*args)
    except Exception as error:
        result = error
    return result, args


def function_of(body: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"np": np, "torch": torch}
    exec(f"def f(a):\n    b = None\n    {body}\n", scope)
    return scope["f"]  # type: ignore[no-any-return]


def check(body: str, dtype: str, fullgraph: bool = False) -> None:
    dynamo.reset()
    f = function_of(body)
    compiled = dynamo.compile(f, backend="eager", fullgraph=fullgraph)
    order = random.choice("CF") if not fullgraph else "C"
    for _ in range(2):
        given = array_of(dtype, order)
        with np.errstate(all="ignore"):
            want, got = outcome(f, given.copy("K")), outcome(compiled, given.copy("K"))
        assert same(want, got), f"{dtype}\neager    {want}\ncompiled {got}"


@pytest.mark.draws
@pytest.mark.parametrize("line", EXPRESSIONS)
def test_expressions(line: str) -> None:
    check(f"return {line}", "float64", fullgraph=True)
    for dtype in random.sample(DTYPES, 2):
        check(f"return {line}", dtype)


@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_elements_are_where_numpy_puts_them(dynamic: bool) -> None:
    """Its default sort is not stable."""
    def f(a: Any) -> Any:
        return (a * 2).argsort(), np.argsort(a, kind="stable"), np.argpartition(a, 20)

    compiled = dynamo.compile(f, fullgraph=True, dynamic=dynamic)
    for size in (100, 300):
        for dtype in ("int8", "int64", "float32"):
            given = np.random.default_rng(size).integers(0, 9, size).astype(dtype)
            assert same(compiled(given), f(given))
        assert (f(given)[0] != f(given)[1]).any()


@pytest.mark.draws
@pytest.mark.parametrize("line", STATEMENTS)
def test_statements(line: str) -> None:
    check(f"{line}; return a, b", "float64", fullgraph=True)
    check(f"{line}; return a, b", random.choice(DTYPES))


@pytest.mark.draws
@pytest.mark.parametrize("line", LEFT_TO_NUMPY)
def test_left_to_numpy(line: str) -> None:
    for dtype in random.sample(DTYPES, 2):
        check(f"return [{line}]", dtype)


# -- guards ------------------------------------------------------------------------------------------


def graphs_of(f: Callable[..., Any], calls: list[Any]) -> int:
    """The number of graphs after calls that must all be right."""
    dynamo.reset()
    seen: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    compiled = dynamo.compile(f, backend=backend)
    for make in calls:
        given = make()
        again = make()
        want, got = outcome(f, *given), outcome(compiled, *again)
        assert same(want, got), f"eager    {want}\ncompiled {got}"
    return len(seen)


def row(*sizes: int, dtype: str = "f4") -> Any:
    return np.arange(1, 1 + np.prod(sizes), dtype=dtype).reshape(sizes)


def double(a: Any) -> Any:
    return torch.from_numpy(a) * 2


def read_only() -> tuple[Any]:
    made = row(3)
    made.flags.writeable = False
    return (made,)


def test_one_graph_for_arrays_alike() -> None:
    assert graphs_of(double, [lambda: (row(3),)] * 3) == 1


def rows_of_three(count: int) -> tuple[Any]:
    return (row(count, 3),)


def test_sizes_become_dynamic() -> None:
    assert graphs_of(double, [partial(rows_of_three, n) for n in (2, 4, 5, 7)]) == 2


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_kinds_of_arrays_are_guarded() -> None:
    misaligned = np.frombuffer(bytearray(13), dtype="f4", offset=1, count=3)
    calls: list[Any] = [
        lambda: (row(3),), read_only, lambda: (misaligned,), lambda: (row(6)[::2],),
        lambda: (row(3, dtype="f8"),), lambda: (row(6)[::-1],), lambda: (row(3).astype(">f4"),),
        lambda: (np.ma.array([1.0, 2]),), lambda: (torch.ones(3),), lambda: (row(3),)]
    assert graphs_of(double, calls) >= 3


def test_a_global_array_that_is_replaced() -> None:
    scope: dict[str, Any] = {"torch": torch, "table": row(3)}
    exec("def f(x): return x + torch.from_numpy(table)", scope)
    compiled = dynamo.compile(scope["f"], backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.tensor([2.0, 3, 4]))
    scope["table"] = row(3) * 2
    assert torch.equal(compiled(torch.ones(3)), torch.tensor([3.0, 5, 7]))


def test_an_array_of_a_module() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = row(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.from_numpy(self.scale)

    model = Scaled()
    compiled = dynamo.compile(model, backend="eager", fullgraph=True)
    x = torch.rand(2, 3, requires_grad=True)
    assert torch.equal(compiled(x), model(x))
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.from_numpy(model.scale).expand(2, 3))  # type: ignore[arg-type]


# -- memory ------------------------------------------------------------------------------------------


def apart() -> tuple[Any, Any]:
    return row(4), row(4)


def overlapping() -> tuple[Any, Any]:
    whole = row(6)
    return whole[:4], whole[2:]


def one() -> tuple[Any, Any]:
    whole = row(4)
    return whole, whole


def halves() -> tuple[Any, Any]:
    whole = row(8)
    return whole[:4], whole[4:]


def with_tensor() -> tuple[Any, Any]:
    tensor = torch.ones(4)
    return tensor, tensor.numpy()


def tensor_apart() -> tuple[Any, Any]:
    return torch.ones(4), row(4)


def add_to_first(a: Any, b: Any) -> Any:
    a += 1
    return a * b, b.sum()


def tensor_first(t: Any, a: Any) -> Any:
    t.add_(1)
    return a * 2, t + 1


def array_first(t: Any, a: Any) -> Any:
    a[0] = 5
    return t * 2, a


@pytest.mark.draws
@pytest.mark.parametrize(("f", "makes"), [
    (add_to_first, (apart, overlapping, one, halves)), (tensor_first, (with_tensor, tensor_apart)),
    (array_first, (with_tensor, tensor_apart))])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_inputs_in_one_memory(f: Any, makes: Any, backend: str) -> None:
    for _ in range(2):
        dynamo.reset()
        compiled = dynamo.compile(f, backend=backend)
        for make in random.choices(makes, k=4):
            want, got = outcome(f, *make()), outcome(compiled, *make())
            assert same(want, got), f"{make}\neager    {want}\ncompiled {got}"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_results_lie_where_eager_has_them(backend: str) -> None:
    def f(x: torch.Tensor, a: Any) -> Any:
        y = x * 2
        a += 1
        return y, y.numpy(), x.numpy()[1:], torch.from_numpy(a), a, a[1:], a.copy()

    x, a = torch.ones(4), row(4)
    y, of_y, of_x, of_a, same_a, part, copy = dynamo.compile(f, backend=backend, fullgraph=True)(x, a)
    of_y[0], of_x[0], part[0], copy[0] = 70, 80, 90, 100
    assert y[0] == 70 and x[1] == 80 and a[1] == 90 and of_a[1] == 90 and same_a is a and a[0] == 2


def test_numbers_of_numpy() -> None:
    def f(a: Any) -> Any:
        return a.sum(), a[0], a.max() * 2, (a > 1).all(), a[0] + a[1]

    a = row(3)
    got = dynamo.compile(f, backend="eager", fullgraph=True)(a)
    assert [type(item) for item in got] == [type(item) for item in f(a)]
    assert same(got, f(a))


def test_a_branch_on_a_number() -> None:
    def f(a: Any) -> Any:
        return a * 2 if a.sum() > 3 else a - 1

    assert graphs_of(f, [lambda: (row(3),), lambda: (row(1),), lambda: (row(1) * 9,)]) > 1


def test_what_requires_grad_has_no_array() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.numpy()

    with pytest.raises(RuntimeError, match="requires grad"):
        dynamo.compile(f, backend="eager")(torch.ones(2, requires_grad=True))


def test_errors_are_numpys() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2 + b

    graphs_of(f, [lambda: (row(3), row(4)), lambda: (row(3), row(3))])


def test_numpy_is_to_raise() -> None:
    compiled = dynamo.compile(function_of("return 1 / (a - a)"), backend="eager")
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        compiled(row(2))


def test_a_tensor_and_an_array() -> None:
    def f(x: torch.Tensor, a: Any) -> Any:
        return torch.add(x, torch.from_numpy(a)) * 2, a * 2

    assert graphs_of(f, [tensor_apart, tensor_apart]) == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_arrays_of_ints_as_indices(dtype: str) -> None:
    def f(a: Any, at: Any) -> Any:
        a[at] = 7
        return a, a[at], a[1, at]

    graphs_of(f, [lambda: (row(3, 3), np.array([0, 2, 1], dtype=dtype))] * 2)


def test_arrays_inside_of_autocast() -> None:
    def f(a: Any) -> Any:
        with torch.autocast("cpu"):
            return a @ a + 0.1

    graphs_of(f, [lambda: (np.random.default_rng(0).normal(size=(3, 3)).astype("f4"),)])


def test_arrays_are_on_the_cpu() -> None:
    def f(a: Any) -> Any:
        return np.zeros(3) + a, np.maximum(a, 2), np.array([1.0, 2, 3]) * a, np.arange(3) + a, 1 / a

    with torch.device("meta"):
        graphs_of(f, [lambda: (row(3),)])


def test_the_base_of_an_array_is_an_array() -> None:
    """scipy's sparse arrays ask for its size."""
    made = dynamo.compile(lambda a: a * 2, backend="eager")(np.arange(4.0))
    assert isinstance(made.base, np.ndarray) and made.base.size == 4


@pytest.mark.parametrize("place", [2, -3, 3, -4])
def test_places_along_an_axis_that_are_too_large(place: int) -> None:
    def f(x: torch.Tensor, at: torch.Tensor) -> Any:
        return np.take_along_axis(x.numpy(), at.numpy(), axis=1)

    compiled, x = dynamo.compile(f, backend="eager"), torch.rand(2, 3)
    at = torch.tensor([[0], [place]])
    if -3 <= place < 3:
        assert (compiled(x, at) == f(x, at)).all()
    else:
        for each in f, compiled:
            with pytest.raises(IndexError, match=f"index {place} is out of bounds"):
                each(x, at)


UNARY = [np.log, np.sqrt, np.square, np.isfinite, np.negative, np.floor, np.absolute, np.signbit, np.logical_not, np.positive]


@pytest.mark.parametrize("ufunc", UNARY, ids=lambda ufunc: ufunc.__name__)
def test_ufuncs_of_tensors_give_tensors(ufunc: Any) -> None:
    """As `numpy.log` of a step size, which schedulers of diffusion models compute."""
    def f(x: torch.Tensor) -> torch.Tensor:
        return ufunc(x)  # type: ignore[no-any-return]

    for x in torch.rand(()), torch.randn(4, 6)[:, ::2], torch.rand(3, 2, dtype=torch.float64).t():
        dynamo.reset()
        made, expected = dynamo.compile(f, backend="eager", fullgraph=True)(x), f(x)
        assert type(made) is torch.Tensor and made.stride() == expected.stride()
        torch.testing.assert_close(made, expected, equal_nan=True)


def test_ufuncs_of_tensors_that_numpy_refuses_or_computes_alone() -> None:
    for x in torch.rand(3, requires_grad=True), torch.rand(0), torch.rand(3).half(), torch.nn.Parameter(torch.rand(2)):
        outcomes = []
        for f in np.log, dynamo.compile(lambda x: np.log(x), backend="eager"):
            try:
                made = f(x)
                outcomes.append((type(made), made.dtype, made.tolist(), made.stride()))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
