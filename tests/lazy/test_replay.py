"""Traces that are followed in C++: known steps again, and each way to leave them, against eager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dynamo import lazy

STEPS = 6


def numbers(*tensors: torch.Tensor) -> list[float]:
    return [float(x) for tensor in tensors for x in tensor.detach().reshape(-1).tolist()]


def run(program: Callable[[int], list[torch.Tensor]], steps: int = STEPS) -> list[list[float]]:
    """What each step of a program gives, looked at when its step is over."""
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        results = program(step)
        lazy.mark_step()
        found.append(numbers(*results))
    return found


def agree(make: Callable[[], Callable[[int], list[torch.Tensor]]], least: int = 1, steps: int = STEPS,
          backend: Any = "eager") -> None:
    """A program gives in a mode what it gives in eager, and at least so many operations of it were
    followed."""
    torch.manual_seed(0)
    expected = run(make(), steps)
    torch.manual_seed(0)
    program = make()
    with lazy.mode("cpu", backend):
        found = run(program, steps)
    for wanted, given in zip(expected, found, strict=True):
        assert given == pytest.approx(wanted, rel=1e-4, abs=1e-5, nan_ok=True)
    assert lazy.metrics().followed >= least, lazy.metrics()


def always(program: Callable[[int], list[torch.Tensor]]) -> Callable[[], Any]:
    return lambda: program


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("foreach", [False, True])
def test_training_is_followed(kind: str, foreach: bool) -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3),
                              nn.Linear(8, 3))
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, foreach=foreach)

        def step(_: int) -> list[torch.Tensor]:
            loss = functional.cross_entropy(model(torch.randn(5, 6)), torch.randint(0, 3, (5,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return [loss.detach(), *model.parameters()]

        return step

    agree(make, least=100)


def test_a_known_step_needs_no_python() -> None:
    weight = torch.randn(4, 4)
    with lazy.mode("cpu", "eager"):
        for _ in range(5):
            x = torch.randn(3, 4)
            y = torch.relu(x @ weight) * 3 + 1
            lazy.mark_step()
            torch.testing.assert_close(lazy.eager(y), torch.relu(x @ weight) * 3 + 1)
    metrics = lazy.metrics()
    assert metrics.compiles == 2 and metrics.hits == 8
    assert metrics.followed >= 12


@pytest.mark.parametrize("grads", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes_take_turns(grads: Any) -> None:
    weight = torch.randn(4, 4, requires_grad=True)

    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(2, 4)
        with grads() if number % 2 else torch.enable_grad():
            y = functional.linear(x, weight).relu().sum()
        if y.requires_grad:
            (gradient,) = torch.autograd.grad(y, weight)
            return [y, gradient]
        return [y]

    agree(always(step), steps=8)


def test_numbers_and_constants_change() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(6, 4)
        y = x * (0.5 + number) + number  # 0 and 1 are constants, others inputs
        return [y, y[number % 3:number % 3 + 2].sum(0), y.clamp(-0.0 if number % 2 else 0.0)]

    agree(always(step), steps=10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_meet_tensors_of_no_dimension(dtype: torch.dtype) -> None:
    """They are inputs there, too, and rounded as eager rounds them."""
    def program(step: int) -> list[torch.Tensor]:
        x, y = torch.randn((), dtype=dtype), torch.randn(3, dtype=dtype)
        factor = 0.1 + step / 7
        z = torch.add(x * factor - 1 / (step + 3), x.sin(), alpha=factor)
        z.addcdiv_(x, x.exp(), value=-factor)
        return [z, z.lerp(x, factor), z / factor, y * z + z * factor, x.long() * (step + 2)]

    wanted = []
    for step in range(STEPS):
        torch.manual_seed(step)
        wanted.append(program(step))
    with lazy.mode("cpu", "eager"):
        for step in range(STEPS):
            torch.manual_seed(step)
            found = program(step)
            for mine, eager in zip(found, wanted[step], strict=True):
                assert mine.dtype is eager.dtype
                torch.testing.assert_close(lazy.eager(mine), eager, rtol=1e-6, atol=1e-7)
    assert lazy.metrics().by_operator <= 1  # `x.long()` times another constant


def test_a_parameter_of_no_dimension_is_trained() -> None:
    """As the temperature of CLIP: numbers of the optimizer that change with each step are inputs,
    so that its trace is the same at each step."""
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(2.6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = functional.log_softmax(self.inner(x) * self.scale.exp(), -1)
            return out

    def make() -> Callable[[int], list[torch.Tensor]]:
        model = Scaled()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(_: int) -> list[torch.Tensor]:
            loss = -model(torch.randn(6, 4)).diagonal().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return [loss.detach(), *model.parameters()]

        return step

    agree(make)
    lazy.reset()
    step = make()
    with lazy.mode("cpu", "eager"):
        for number in range(STEPS):
            step(number)
            lazy.mark_step()
    metrics = lazy.metrics()
    # The first step makes the optimizer's state, so the second has other operations.
    assert (metrics.compiles, metrics.by_operator, metrics.hits) == (2, 0, STEPS - 2), metrics


def test_sizes_change_and_come_back() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(3 + (number // 2) % 2, 4)
        return [(x @ x.t()).softmax(-1).cumsum(0)]

    agree(always(step), steps=12)


def test_dtypes_and_strides_change() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(4, 4)
        x = (x, x.t(), x.double(), x[:, ::2])[number % 4]
        return [(x + 1).sum(-1), x.transpose(0, 1) * 2.5]

    agree(always(step), steps=12)


def test_the_default_dtype_changes() -> None:
    def step(number: int) -> list[torch.Tensor]:
        torch.set_default_dtype((torch.float32, torch.float64)[number % 2])
        try:
            x = torch.arange(6) / 4 + torch.ones(6)
            return [x * (1 if x.dtype is torch.get_default_dtype() else torch.nan)]
        finally:
            torch.set_default_dtype(torch.float32)

    agree(always(step), steps=8)


def test_writes_into_inputs_and_views() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        state = torch.randn(4, 5)

        def step(_: int) -> list[torch.Tensor]:
            before = state * 2
            row = state[1]
            row.mul_(1.5).add_(torch.randn(5))
            state.t()[2].sub_(before.t()[0])
            return [before, row, state]

        return step

    agree(make)


def test_inputs_begin_to_share_memory() -> None:
    memory = torch.zeros(20)

    def step(number: int) -> list[torch.Tensor]:
        memory.copy_(torch.arange(20.0))
        lazy.mark_step()
        first = memory[:8]
        second = memory[12:] if number < 3 else memory[4:12] if number < 6 else memory[:8]
        first, second = lazy.eager(first), lazy.eager(second)
        lazy.mark_step()
        first.mul_(2)
        second.add_(1)
        return [first * 1.5, second + 0.5, memory]

    agree(always(step), steps=9)


def test_one_tensor_in_two_places() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x, y = torch.randn(3, 3), torch.randn(3, 3)
        y = x if number in (3, 4, 7) else y
        x.add_(1)
        return [x @ y + y, y * 2]

    agree(always(step), steps=9)


def test_data_of_a_parameter_is_swapped() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        weight = nn.Parameter(torch.randn(3, 3))

        def step(number: int) -> list[torch.Tensor]:
            x = torch.randn(2, 3)
            y = x @ weight
            if number >= 2:
                weight.data = torch.full((3, 3), float(number))
            z = y + x @ weight
            return [y, z]

        return step

    agree(make, steps=8)


def test_data_of_a_lazy_tensor_is_swapped() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(3) * 2
        if number % 2:
            x.data = torch.randn(3) + 1
        return [x * 3, x.detach() - 1]

    agree(always(step), steps=8)


def test_looks_in_the_middle() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(5)
        y = x * 2 + 1
        scale = float(y.sum())
        z = y * scale if scale > 0 else y - scale
        assert str(z).startswith("tensor(")
        return [z + z.max().item(), y]

    agree(always(step), steps=12)


def test_operators_that_are_not_recorded() -> None:
    def step(_: int) -> list[torch.Tensor]:
        x = torch.randn(12) + 0.2
        kept = x[x > 0]
        return [kept * 2, torch.nonzero(x > 0.5) + 1]

    agree(always(step))


def test_random_numbers_keep_eagers_stream() -> None:
    def step(_: int) -> list[torch.Tensor]:
        x = torch.ones(30) * 2
        y = functional.dropout(x, 0.4)
        noise = torch.rand_like(y) + torch.randn(30)
        drawn = torch.empty(5).uniform_(2, 3) + 0
        filled = (x + 1).normal_()
        return [y, noise, drawn, filled, torch.randn(3)]

    agree(always(step))


def test_results_are_kept_for_some_steps() -> None:
    kept: list[torch.Tensor] = []

    def make() -> Callable[[int], list[torch.Tensor]]:
        kept.clear()

        def step(number: int) -> list[torch.Tensor]:
            x = torch.randn(4)
            y = x.exp()
            z = y * 2 - x
            if number % 3 == 2:
                kept.append(y)
            return [z, *kept]

        return step

    agree(make, steps=9)


def test_aliases_of_what_is_recorded() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(4) + 1
        y = x.detach()
        y.mul_(2)
        z = x.detach().clone()
        return [x + y, z, y if number % 2 else x]

    agree(always(step))


def test_results_of_a_step_enter_the_next() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        state = [torch.randn(3), torch.randn(3)]

        def step(number: int) -> list[torch.Tensor]:
            hidden = torch.tanh(state[0] + state[1].detach())
            if number == 5:
                state[1] = hidden
            state[0] = hidden
            hidden.mul_(1.1)
            return [hidden, *state]

        return step

    agree(make, steps=9)


def test_errors_are_raised_where_eager_raises_them() -> None:
    weight = torch.randn(4, 4)
    with lazy.mode("cpu", "eager"):
        for step in range(8):
            x = torch.randn(3, 4)
            y = x @ weight
            if step in (3, 5):
                with pytest.raises(RuntimeError, match="must match"):
                    y + torch.randn(3, 5)
            z = y.sum(0)
            lazy.mark_step()
            torch.testing.assert_close(lazy.eager(z), (x @ weight).sum(0))
    assert lazy.metrics().followed > 0


def test_errors_of_a_followed_trace() -> None:
    table = torch.randn(5, 2)
    with lazy.mode("cpu", "inductor"):
        for step in range(5):
            at = torch.tensor([0, 1 if step < 3 else 99])
            found = functional.embedding(at, table) * 2
            if step < 3:
                lazy.mark_step()
                torch.testing.assert_close(lazy.eager(found), table[at] * 2)
            else:
                with pytest.raises((IndexError, RuntimeError)):
                    lazy.mark_step()
                with pytest.raises(lazy.LazyError):
                    found.tolist()
    assert lazy.metrics().followed > 0


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._opname)
        return func(*args, **(kwargs or {}))


def test_other_modes_see_every_call() -> None:
    x = torch.randn(3)
    with lazy.mode("cpu", "eager"):
        for _ in range(4):
            (x * 2 + 1).sum()
            lazy.mark_step()
        with Counting() as counting:
            y = (x * 2 + 1).sum()
        lazy.mark_step()
        z = (x * 2 + 1).sum()
        assert counting.seen == ["mul", "add", "sum"]
        assert numbers(y, z) == numbers((x * 2 + 1).sum()) * 2


def test_memory_of_numpy_is_copied() -> None:
    array = numpy.zeros(4, dtype=numpy.float32)
    own = torch.zeros(4)
    with lazy.mode("cpu", "eager"):
        for step in range(6):
            array[:] = step
            y = torch.from_numpy(array) + own
            array[:] = 100
            if step == 3:
                own.numpy()[:] = 7  # from here on others may write it at any time
            z = own + 1
            if step >= 3:
                own.numpy()[:] = 7 + step
            assert y.tolist() == [step + (0.0 if step <= 3 else 6.0 + step)] * 4
            assert z.tolist() == [1.0 if step < 3 else 8.0 if step == 3 else 7.0 + step] * 4


def test_looks_at_ordinary_tensors() -> None:
    weight, other = torch.ones(3), torch.ones(3)
    with lazy.mode("cpu", "eager"):
        for step in range(6):
            y = weight * 2
            weight.add_(1)
            if step % 2:
                assert weight.tolist() == [step + 2.0] * 3
            assert other.numpy().tolist() == [1.0] * 3
            lazy.mark_step()
            assert y.tolist() == [2.0 * (step + 1)] * 3


def test_threads_share_one_order() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with lazy.mode("cpu", "eager"):
            for _ in range(30):
                x = torch.randn(4, generator=generator)
                y = (x * 2 + seed).relu().sum()
                if seed % 2:
                    lazy.mark_step()
                expected = sum(max(2 * v + seed, 0) for v in x.tolist())
                if abs(y.item() - expected) > 1e-4:
                    wrong.append((seed, y.item(), expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_backward_in_another_thread() -> None:
    x = torch.randn(3, requires_grad=True)
    with lazy.mode("cpu", "eager"):
        for step in range(5):
            loss = (x * (step + 2.0)).exp().sum()
            x.grad = None
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            lazy.mark_step()
            expected = (step + 2.0) * (x * (step + 2.0)).exp()
            assert numbers(x.grad) == pytest.approx(numbers(expected), rel=1e-4)


def test_checkpoints_and_hooks() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))
        seen: list[torch.Tensor] = []
        model[0].register_forward_hook(lambda m, i, o: seen.append(o.detach()))

        def step(_: int) -> list[torch.Tensor]:
            seen.clear()
            model.zero_grad()
            y = checkpoint(model, torch.randn(3, 4), use_reentrant=False)
            y.register_hook(lambda gradient: gradient * 2)
            y.square().mean().backward()
            return [y, *seen, *(p.grad for p in model.parameters())]

        return step

    agree(make)


def test_autocast_and_grad_accumulation() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        def step(number: int) -> list[torch.Tensor]:
            if number % 3 == 0:
                model.zero_grad(set_to_none=number % 2 == 0)
            with torch.autocast("cpu", torch.bfloat16, enabled=number >= 4):
                loss = model(torch.randn(3, 4)).float().square().mean()
            loss.backward()
            return [loss, *(p.grad for p in model.parameters())]

        return step

    agree(make, steps=12)


def test_single_numbers_of_the_host() -> None:
    def make() -> Callable[[int], list[torch.Tensor]]:
        scale = nn.Parameter(torch.tensor(0.3))
        weight = nn.Parameter(torch.randn(3, 3))

        def step(number: int) -> list[torch.Tensor]:
            scale.grad = weight.grad = None
            factor = scale.exp() + number  # computed at once; backward needs what it saved
            loss = ((torch.randn(2, 3) @ weight) * factor).square().mean()
            loss.backward()
            return [loss, factor, scale.grad, weight.grad]

        return step

    agree(make, steps=8)


def test_attributes_of_followed_tensors() -> None:
    with lazy.mode("cpu", "eager"):
        for step in range(5):
            x = torch.randn(2, 3)
            y = x.t().contiguous() * 2
            y.tag = step
            assert type(y) is lazy.LazyTensor and lazy.is_lazy(y) and y.tag == step
            assert y.shape == (3, 2) and y.stride() == (2, 1) and y.dtype is torch.float32
            lazy.mark_step()
            assert numbers(y) == numbers(x.t().contiguous() * 2)


def test_modes_within_and_after_each_other() -> None:
    x = torch.randn(4)
    for _ in range(3):
        with lazy.mode("cpu", "eager"):
            y = x * 2
            with lazy.mode("cpu", "inductor"):
                z = y + x
            w = z - y
        assert numbers(y, z, w) == pytest.approx(numbers(x * 2, x * 3, x), rel=1e-5)
    before = lazy.metrics().followed
    for _ in range(3):
        with lazy.mode("cpu", "eager"):
            y = x * 2
        assert numbers(y) == numbers(x * 2)
    assert lazy.metrics().followed > before
