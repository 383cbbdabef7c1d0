"""Numbers that only the running program knows: in the graph, and the same answers as eager."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters
from dynamo.testing import CompileCounter
from tests.shapes.test_numbers import assert_same

Program = Callable[..., Any]
INTS = [torch.tensor(n) for n in (3, 7, 0, 1, 12, -1, 100)]


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    dynamo.reset()
    with dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def outcome(function: Program, *args: torch.Tensor) -> Any:
    """What it returns, or the exception that it raises."""
    try:
        return function(*[arg.clone() for arg in args])
    except Exception as error:
        return type(error), str(error)


def compare(program: Program, calls: list[tuple[torch.Tensor, ...]], backend: Any = None) -> int:
    """Results and exceptions are eager's, rounding of compiled sums aside; the number of graphs."""
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=backend or counter)
    for args in calls:
        assert_same(outcome(compiled, *args), outcome(program, *args), 1e-5 if backend else 0)
    return counter.frame_count


def rows() -> torch.Tensor:
    return torch.randn(7, 3)


def read(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return x * n, n, [n, {"n": n + 1}], x.add(1, alpha=n)


def as_size(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = int(t)
    return torch.zeros(n), x.new_ones(2, n) * 2, torch.arange(n + 1), n * 2


def as_slice(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    head, tail = x[:n], x[n:]
    return head * 2, tail.sum(), head.shape, head.shape[0] + 1, tail.numel(), x[1:n, 0]


def as_view(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._check(n > 0)
    return x.view(n, -1).sum(0), x.reshape(n, -1) + 1


def as_index(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    y = x.clone()
    y[n] = 5.0
    return x[n], x[n, 1], y


def arithmetic(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return (n + 1, 2 - n, n * 3, n // 2, n % 3, -n, +n, abs(n), n**2, n / 4, float(n), n == 3, n > 2,
            n is None, n == "n", isinstance(n, int), (n > 1) & (n < 9), n + x.shape[0])


def checked(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._check(n >= 0)
    torch._check(n <= x.size(0), lambda: "more rows than there are")
    return x[:n] * 2, x.narrow(0, 0, n).sum(), n >= 0


def constrained(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._constrain_as_size(n, 1, 5)
    return x.new_zeros(n, 2), n > 0


def listed(x: torch.Tensor, t: torch.Tensor) -> Any:
    first, second = x[0, :2].tolist()
    return first + second, x[:2].tolist(), t.tolist()


def unused(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch.zeros(n)  # raises, though nobody needs it
    x[n]
    return x + 1


IN_ONE_GRAPH = [read, as_size, as_slice, as_view, as_index, arithmetic, checked, constrained, listed,
                unused]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", IN_ONE_GRAPH)
def test_one_graph(program: Program) -> None:
    x = rows()
    assert compare(program, [(x, t) for t in INTS]) == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("program", [read, as_slice, as_view, checked])
def test_default_backend(program: Program) -> None:
    x = rows()
    compare(program, [(x, t) for t in INTS], backend="inductor")


def branches(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    y = x + 1
    if n > 3:
        return y * n
    return y - n


def compares_sizes(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return x * 2 if x.shape[0] == n else x - n


def view_unchecked(x: torch.Tensor, t: torch.Tensor) -> Any:
    return x.view(t.item(), -1).sum(0)


def broadcasts(x: torch.Tensor, t: torch.Tensor) -> Any:
    return torch.zeros(t.item()) + x[:, 0]


def text(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return f"{n}", x * n


def loops(x: torch.Tensor, t: torch.Tensor) -> Any:
    for i in range(t.item()):
        x = x + i
    return x


def containers(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return [0] * n, {n: 1}, (1, 2, 3)[n % 3], x * n


def functions(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return math.sqrt(abs(n)), round(n / 3), min(n, 2), max(1, n), x * n


def divides(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    return x.shape[0] // n, x % n


def caught(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    try:
        return x + len(n)
    except TypeError:
        return x - n


def checked_in_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    try:
        with torch.no_grad():
            torch._check(n > 0)
    except RuntimeError as error:
        return x - 1, str(error)
    return x + n


def size_in_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    seen = []
    try:
        return torch.zeros(n)
    except RuntimeError:
        return x[0] * n
    finally:
        seen.append(x[:2].sum(0))


def index_in_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    try:
        return x[n].sum(dim=None, dtype=torch.float64)
    except IndexError:
        return x


BROKEN = [checked_in_try, compares_sizes, branches, view_unchecked, broadcasts, text, loops, containers, functions, caught]


@pytest.mark.parametrize("program", BROKEN)
def test_decisions_break(program: Program) -> None:
    x = rows()
    compare(program, [(x, t) for t in INTS])
    compare(program, [(torch.randn(n, 3), INTS[1]) for n in (5, 6, 7, 8)])
    reasons = [str(reason) for reason in counters["graph_break"]]
    assert reasons and all("unknown" in r or "Unknown" in r for r in reasons), reasons


def narrow_in_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    n, seen = t.item(), []
    try:
        return x.narrow(0, 0, n) * 2, seen
    except (IndexError, RuntimeError) as error:
        return x - 1, type(error)
    finally:
        seen.append(1)


def sum_by_index_in_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    """As libraries for graphs add what comes to each node."""
    index = torch.arange(x.shape[0])[x[:, 0] > t]
    try:
        return torch.zeros(5).scatter_add(0, index, torch.ones(index.shape[0])) + t
    except (IndexError, RuntimeError) as error:
        if index.numel() > 0 and int(index.max()) >= 5:
            raise ValueError(f"{int(index.max())} is no node") from error
        raise


def size_in_finally(x: torch.Tensor, t: torch.Tensor) -> Any:
    seen: list[int] = []
    try:
        try:
            y = torch.ones(t.item())
        finally:
            seen.append(5)
    except RuntimeError as error:
        return x + len(seen), str(error)
    return y * len(seen)


TRIED = [size_in_try, index_in_try, narrow_in_try, sum_by_index_in_try, size_in_finally]


@pytest.mark.parametrize("backend", [None, "inductor"])
@pytest.mark.parametrize("program", TRIED)
def test_handlers_see_what_a_graph_raises(program: Program, backend: str | None) -> None:
    """The part runs again without the compiler."""
    calls = [(torch.randn(n, 3), t) for n in (7, 9) for t in (*INTS, torch.tensor(-1))]
    compare(program, calls, backend)
    assert not counters["graph_break"]


def written_before_try(x: torch.Tensor, t: torch.Tensor) -> Any:
    x.add_(1)
    try:
        return torch.zeros(t.item()), x
    except RuntimeError:
        return x * 2


def test_what_cannot_run_twice_stands_apart() -> None:
    compare(written_before_try, [(rows(), t) for t in INTS])
    assert ["caught_error" in str(reason) for reason in counters["graph_break"]] == [True]


def integers(x: torch.Tensor, t: torch.Tensor) -> Any:
    n, m = t.item(), operator.index(t)
    q, r = divmod(n, 5)
    return x + 100 // n, x * (-7 % n), n % -4 + m // -3, (n & 6) | (n << 1) ^ (n >> 1), q * r


def wholes(x: torch.Tensor, t: torch.Tensor) -> Any:
    f = t.item() * 0.7
    return x + int(t * 0.6) + int(f), math.floor(f), math.ceil(f), math.trunc(f), round(f), f ** 2


def raises_alone(x: torch.Tensor, t: torch.Tensor) -> Any:
    100 // t.item()  # noqa: B018
    return x + 1


def told(f: Program, *args: torch.Tensor) -> Any:
    try:
        return f(*args)
    except ArithmeticError as error:
        return type(error), str(error)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program,values", [
    (divides, [7, 3, 0]), (integers, [7, -9, 0]), (wholes, [3, -4]), (raises_alone, [1, 0]),
    (wholes, [2.5, -2.5, math.nan, math.inf]),
])
def test_python_functions_of_numbers(backend: str, program: Program, values: list[float]) -> None:
    """Those that torch's expressions lack, or have for some numbers alone; they raise as in eager."""
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    x = torch.rand(4, 3)
    for value in values:
        t = torch.tensor(value)
        found, wanted = told(compiled, x, t), told(program, x, t)
        assert str(found) == str(wanted)


def test_break_names_the_condition_and_its_origin() -> None:
    with pytest.raises(dynamo.exc.Unsupported) as info:
        dynamo.compile(broadcasts, backend="eager", fullgraph=True)(rows(), torch.tensor(7))
    told = str(info.value)
    assert "u0 == 7" in told and "t.item()" in told and "torch._check" in told
    assert "return torch.zeros" in told


def test_floats_keep_their_rounding() -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> Any:
        f = t.item()
        return f + 0.1 + 0.2, f * 0.1 * 3.0, x * f, [f == f, f - f, f / 3]

    values = [0.7, 1e300, math.inf, *torch.randn(3).tolist()]
    assert compare(program, [(rows(), torch.tensor(v, dtype=torch.float64)) for v in values]) == 1


def test_an_attribute_takes_the_value() -> None:
    class Model(torch.nn.Module):
        loss: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.loss = x.sum().item()
            return x + 1

    model = Model()
    compiled = dynamo.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        x = rows()
        compiled(x)
        assert model.loss == x.sum().item()


# -- sizes that depend on data -------------------------------------------------------------------


def masks(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return y * 2 + 1, y.shape[0], y.numel(), y.sum(), torch.cat([y, x[:, 0]])


def mask_of_rows(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y @ x.new_ones(3, 4), y.softmax(-1), y.relu().mean(0), torch.zeros(y.shape[0])


def positions(x: torch.Tensor) -> Any:
    found = x.nonzero()
    return found, found.shape, x[found[:, 0]].sum(0), torch.argwhere(x > 0)


def counts(x: torch.Tensor) -> Any:
    values, back, times = torch.unique(x.round(), return_inverse=True, return_counts=True)
    return values, back, times, x.masked_select(x > 0), x.unique().shape


def repeats(x: torch.Tensor) -> Any:
    return x.repeat_interleave((x[:, 0] > 0).long() + 1, 0) * 2


def writes(x: torch.Tensor) -> Any:
    x[x > 0] = 0
    x[x < -1] *= 2
    return x


@pytest.mark.parametrize("backend", [None, "inductor"])
@pytest.mark.parametrize("program", [masks, mask_of_rows, positions, counts, repeats, writes])
def test_sizes_of_data(program: Program, backend: str | None) -> None:
    x = rows()
    calls = [(x,), (x.abs(),), (-x.abs(),), (rows() * 0,), (torch.randn(7, 3),)]
    assert compare(program, calls, backend) == (backend is None)
    assert not counters["graph_break"]


def test_sizes_of_data_with_other_inputs() -> None:
    assert compare(mask_of_rows, [(torch.randn(n, 3),) for n in (5, 6, 9, 2, 31)]) <= 2


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("of", [torch.int32, torch.int64])
def test_counts_have_the_dtype_of_their_weights(dtype: torch.dtype | None, of: torch.dtype) -> None:
    def program(x: torch.Tensor, w: torch.Tensor | None) -> Any:
        counts = torch.bincount(x, w, minlength=4)
        return counts + 1, str(counts.dtype)

    x, w = torch.tensor([1, 3, 1, 0], dtype=of), None if dtype is None else torch.ones(4, dtype=dtype)
    counters.clear()
    found, wanted = dynamo.compile(program, fullgraph=True)(x, w), program(x, w)
    assert found[1] == wanted[1] and torch.equal(found[0], wanted[0]) and found[0].dtype is wanted[0].dtype
    assert not counters["not_compiled"]


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_sizes_that_are_many_broadcast(backend: str | None) -> None:
    """Of 4 or more elements: there must be 4, or eager raises. Of one or more, one is repeated."""
    def many(x: torch.Tensor) -> Any:
        counts = torch.bincount(x, minlength=4)
        mean = torch.zeros(4, 2).add_(1) / counts.clamp(min=1)[:, None]
        return mean, torch.where(counts > 1, counts, mean[:, 0]), counts.shape[0]

    def one_or_more(x: torch.Tensor) -> Any:
        counts = torch.bincount(x)
        return counts * torch.ones(2), counts * counts.shape[0]

    def as_many_as_rows(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.bincount(x, minlength=y.shape[0]) + y[:, 0], y.shape

    calls = [(torch.tensor(given),) for given in ([0, 1, 1], [3, 2], [1, 5, 0], [0, 0], [1, 1])]
    given = [(x % n, torch.randn(n, 2)) for (x,), n in zip(calls, (4, 3, 5, 3, 2), strict=True)]
    compare(as_many_as_rows, [*given, (given[2][0] + 3, given[2][1])], backend)
    assert not counters["graph_break"]
    compare(many, calls, backend)
    assert not counters["graph_break"]
    compare(one_or_more, calls, backend)
    assert any("u0 == 2" in str(reason) for reason in counters["graph_break"])


def test_repeats_of_a_given_count_have_that_size() -> None:
    def program(x: torch.Tensor, counts: torch.Tensor) -> Any:
        made = torch.repeat_interleave(x, counts, 0, output_size=5)
        return made * torch.arange(5)[:, None], torch.repeat_interleave(counts, output_size=5), made.shape

    for dtype in (torch.int32, torch.int64):
        x, counts = rows(), torch.tensor([2, 0, 3, 0, 0, 0, 0], dtype=dtype)
        assert_same(dynamo.compile(program, fullgraph=True)(x, counts), program(x, counts))
    assert not counters["graph_break"] and not counters["not_compiled"]


def test_unequal_masks_are_told() -> None:
    def program(x: torch.Tensor) -> Any:
        return x[x > 0] + x[x > 0.5]

    compare(program, [(rows().abs() + 1,), (rows(),)])
    assert any("u0 == u1" in str(reason) for reason in counters["graph_break"])


@pytest.mark.parametrize(("program", "option"), [
    (read, "capture_scalar_outputs"), (masks, "capture_dynamic_output_shape_ops")])
def test_hint_names_the_option(program: Program, option: str) -> None:
    args = (rows(), torch.tensor(3))[: program.__code__.co_argcount]
    off = dynamo.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False)
    with off:
        assert f"config.{option}" in dynamo.explain(program)(*args).costs[0].text


def test_checks_in_a_branch_of_cond_are_not_taken_for_granted() -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> Any:
        n = t.item()

        def positive(x: torch.Tensor) -> torch.Tensor:
            torch._check(n > 0)
            return x * n

        return torch.cond(t > 0, positive, torch.neg, (x,)), 1 if n > 0 else 2

    with pytest.raises(dynamo.exc.Unsupported, match="a branch that checks a number"):
        dynamo.compile(program, backend="eager", fullgraph=True)(rows(), INTS[0])


@pytest.mark.parametrize("program", [
    lambda x: x * x.long().sum().item(),
    lambda x: x[x > 0] * 2,
    lambda x: x.nonzero().sum() + x,
])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_whole_graph_holds_what_the_data_decides(program: Program, backend: str) -> None:
    with dynamo.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        compiled = dynamo.compile(program, backend=backend, fullgraph=True)
        for _ in range(3):
            x = torch.randn(5)
            assert_same(compiled(x), program(x), 1e-6)
        counter = CompileCounter()
        dynamo.compile(program, backend=counter)(x)
        assert counter.frame_count > 1 or counters["graph_break"]
