"""Views that are made without grad mode, of what requires grad: they say that they do, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._autograd import _get_creation_meta  # type: ignore[attr-defined]

import dynamo
from dynamo.testing import assert_compiled

Program = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def of_an_input(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return w.transpose(0, 1), x + 1


def in_a_block(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        view = w[1:].transpose(0, 1)
    return view, x * w.sum()


def of_a_result(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (w * 2).exp()
    with torch.no_grad():
        return y.view(-1)[3:], y, y.chunk(2)[0]


def live_at_a_break(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    view, y = w.t(), x.exp()
    dynamo.graph_break()
    return view, y @ view


def facts(result: tuple[torch.Tensor, ...]) -> list[object]:
    return [
        (t.requires_grad, t.is_leaf, t.grad_fn is None, t._is_view() and _get_creation_meta(t))
        for t in result
    ]


def of_what_is_not_given(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    with torch.no_grad():
        view = y.view(-1)[3:]
    return view, x * 2, view


def viewed_with_grad(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    with torch.no_grad():
        given, row = y.t(), w[1]
    return given[1:].t(), given, given.t(), row[2:], x * y


def as_other_numbers(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.complex(w, x)
    with torch.no_grad():
        return torch.view_as_real(y)[1:], y.conj(), y.conj().imag[2:], y.abs()


def in_inference_mode(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = w.exp()
    with torch.inference_mode():
        given, row = y.t(), w[1]
    return given, row, y, row[1:]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("program", [
    of_an_input, in_a_block, of_a_result, live_at_a_break, of_what_is_not_given, viewed_with_grad,
    as_other_numbers, in_inference_mode,
])
def test_equals_eager(program: Program, grad: bool) -> None:
    if program in (of_what_is_not_given, in_inference_mode) and not grad:
        pytest.skip("what needs no gradient does not tell how it was viewed")
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    dynamo.reset()  # what other tests left uncompiled is not counted
    compiled = dynamo.compile(program)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            want, got = program(w, x), compiled(w, x)
            torch.testing.assert_close(got, want)
            assert facts(got) == facts(want)
            shares = [t.untyped_storage()._cdata == w.untyped_storage()._cdata for t in want]
            assert [t.untyped_storage()._cdata == w.untyped_storage()._cdata for t in got] == shares
            bases = [[t._base is other for other in (w, *want)] for t in want]
            assert [[t._base is other for other in (w, *got)] for t in got] == bases
    assert_compiled()


def test_a_view_whose_base_was_written_is_eagers_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            view = x.view(-1)[1:].neg_()
        return view.sigmoid()

    for program in (f, dynamo.compile(f)):
        with pytest.raises(RuntimeError, match="no_grad mode"):
            program(torch.randn(2, 3, requires_grad=True) * 2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_backward_ends_at_a_view_of_what_is_not_given(mode: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp() * 2
        with mode():
            view = y.view(-1)
        return view, x.sin()

    dynamo.reset()
    found = []
    for program in (f, dynamo.compile(f)):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        view, other = program(x)
        (view.sum() + other.sum()).backward()
        found.append((view, other, x.grad))
    torch.testing.assert_close(found[0], found[1])
    assert facts(found[0])[0] == facts(found[1])[0]


def of_an_input_read(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        view, (low, high) = x.t(), x.chunk(2)
    return view.sin() + x.t(), low * high + x[:2]


def of_a_result_read(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.no_grad():
        row, flat = y[0], y.view(-1)
    return (y * row).sum() + y.exp() @ flat.reshape(4, 4), flat.detach() + y.view(-1)


def given_and_read(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.no_grad():
        row = y[1:]
    return y * row.sum(), row, y


def viewed_again(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.no_grad():
        row = y[0]
    return y * row, row[1:], y


def detached_beside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.no_grad():
        row = y.view(16)
    return y.detach(), row.view(4, 4), x * 2


def written_later(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        flat = x.view(-1)
    z = x * 2 + flat.sum()
    with torch.no_grad():
        x.mul_(2)
    return (z,)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("program", "compiles"), [
    (of_an_input_read, True), (of_a_result_read, True), (given_and_read, True), (viewed_again, True), (detached_beside, False), (written_later, False),
], ids=lambda p: getattr(p, "__name__", ""))  # fmt: skip
def test_grad_mode_reads_a_view(
    program: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], compiles: bool, dynamic: bool
) -> None:
    """No gradient comes to the view or its base by way of it."""
    dynamo.reset()
    found = []
    for call in (program, dynamo.compile(program, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        results = call(x)
        sum(t.sum() for t in results).backward()  # type: ignore[union-attr]
        found.append((*results, x.grad))
        given = [*facts(results), *(t.grad for t in results if t.is_leaf)]
        found.append(tuple(map(str, given)))
    torch.testing.assert_close(found[2], found[0])
    assert found[3] == found[1]
    reasons = list(dynamo.counters["not_compiled"])
    assert not reasons if compiles else "made in" in reasons[0]


@pytest.mark.parametrize("write", [lambda v, y: v.mul_(2), lambda v, y: y.mul_(2) * v, lambda v, y: v.requires_grad_() * y.mul_(2)])
def test_what_is_written_in_grad_mode_is_eagers_error(write: Callable[..., torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with torch.no_grad():
            view = y[0]
        z = view * y
        return write(view, y) + z

    for program in (f, dynamo.compile(f)):
        with pytest.raises(RuntimeError, match="no_grad mode"):
            program(torch.randn(2, 3, requires_grad=True))
