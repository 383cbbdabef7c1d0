"""Programs in a process where torch's own compiler has patched `nn.Module`."""

from __future__ import annotations

from tests.processes import run_python

PROGRAM = """
import torch
from torch import nn
import dynamo

x = torch.rand(2, 3)
torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # eager: starts torch's compiler

def f(x):
    return nn.Sequential(nn.ReLU(), nn.Dropout(0.0))(x) + nn.MSELoss()(x, x * 2)

assert nn.Module.__init__.__name__ == "patched_init"
assert torch.equal(dynamo.compile(f, backend="eager", fullgraph=True)(x), f(x))
print("fine")
"""


def test_modules_made_inside_after_another_compiler() -> None:
    run = run_python("-c", PROGRAM, quiet=True, bare=True)
    assert run.stdout == "fine\n", run.stderr
