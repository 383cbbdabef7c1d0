"""The inverse of a short-time Fourier transform, whose kernel looks at the values of its window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import CompileCounter

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": lambda s, w: torch.istft(s * 2, 16, 4, window=w, length=60) + 1,
    "method": lambda s, w: (s * 2).istft(16, 4, window=w) + 1,
    "two_sided": lambda s, w: torch.istft(
        torch.cat((s, s[..., 1:-1, :]), -2), 16, 4, window=w, onesided=False, return_complex=True
    ).abs(),
}


def spectrum(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.complex64)


@pytest.mark.parametrize("form", FORMS)
def test_one_graph(form: str) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(FORMS[form], backend=counter, fullgraph=True)
    window = torch.hann_window(16)
    for count, sizes in ((1, (2, 9, 16)), (1, (2, 9, 16)), (2, (3, 9, 16)), (2, (4, 9, 16))):
        data = spectrum(*sizes)
        found, wanted = compiled(data, window), FORMS[form](data, window)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()
        assert counter.frame_count == count


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_gradients_and_errors(backend: str) -> None:
    """A window that leaves gaps is an error of the running program, whatever the backend."""
    form = FORMS["function"]
    dynamo.counters.clear()
    compiled = dynamo.compile(form, backend=backend)
    window = torch.hann_window(16)
    for batch in (2, 3):
        data = spectrum(batch, 9, 16).requires_grad_()
        gradients = [
            torch.autograd.grad(each(data, window).square().sum(), data)[0]
            for each in (compiled, form)
        ]
        torch.testing.assert_close(*gradients)
        with pytest.raises(RuntimeError, match="window overlap add"):
            compiled(data, torch.zeros(16))
    assert not dynamo.counters["graph_break"]


def test_wrong_arguments() -> None:
    given = torch.randn(2, 9, 16), torch.hann_window(16)
    with pytest.raises((RuntimeError, TypeError)) as wanted:  # the latter from torch 2.14 on
        FORMS["function"](*given)
    with pytest.raises(type(wanted.value), match="complex-valued input"):
        dynamo.compile(FORMS["function"], backend="eager")(*given)
