"""A cached graph, whose values show no history, that is cut between what is differentiated and its leaf."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.processes import run

CUT = "torch.nn.functional.one_hot(torch.arange(3), 3)"  # runs as it is
PROGRAMS = {
    "a value": f"""
def f(x, w):
    bent = (x * w).tanh()
    counts = {CUT}.sum(0)
    return torch.autograd.grad((bent * x * counts).sum(), x)[0]
""",
    "a value that was written": f"""
def f(x, w):
    bent = torch.zeros(3)
    bent.add_((x * w).tanh())
    counts = {CUT}.sum(0)
    return torch.autograd.grad((bent * x * counts).sum(), x)[0]
""",
    "a value of what is detached later": f"""
def f(x, w):
    first = x * w
    bent = first.tanh()
    first.detach_()
    counts = {CUT}.sum(0)
    return torch.autograd.grad((bent * x * counts).sum(), x)[0]
""",
    "a leaf": f"""
def f(x, w):
    leaf = x.detach().requires_grad_()
    counts = {CUT}.sum(0)
    return torch.autograd.grad((leaf * w * leaf * counts).sum(), leaf)[0]
""",
}
RUN = """
def run():
    torch.manual_seed(0)
    x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
    return [pair(f, x, w, grad=True)]
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_whole(name: str, tmp_path: Path) -> None:
    outcomes = [run(tmp_path, PROGRAMS[name] + RUN) for _ in range(2)]
    assert [outcome.reused for outcome in outcomes] == [0, 1]
    assert not any(outcome.defects for outcome in outcomes)
