"""Hooks of modules and tensors around compiled code, with gradients, on both backends."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from tests.features.harness import check, table


def build(kind: str) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    log: list[Any] = []

    def full(module: nn.Module, inner: Any, outer: Any) -> Any:
        log.append((inner, outer))
        return None if inner[0] is None else (inner[0] * 2,)

    def before(module: nn.Module, outer: Any) -> Any:
        log.append(outer)
        return (outer[0] * 3,)

    if kind == "full":
        model[1].register_full_backward_hook(full)
    elif kind == "pre":
        model[2].register_full_backward_pre_hook(before)
    elif kind == "root":
        model.register_full_backward_hook(full)
    else:
        model[1].register_forward_hook(lambda m, a, out: (out.register_hook(lambda g: g * 5), None)[1])
    return model, log


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", ["full", "pre", "root", "tensor"])
@pytest.mark.parametrize("needs", [True, False])
def test_backward_hooks(kind: str, backend: str, needs: bool) -> None:
    (eager, wanted), (traced, found) = build(kind), build(kind)
    compiled = dynamo.compile(traced, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.rand(5, 3, requires_grad=needs)
        y = x.detach().clone().requires_grad_(needs)
        for model, argument in ((eager, x), (compiled, y)):
            model.zero_grad()
            with warnings.catch_warnings(action="ignore"):
                model(argument * 1).square().sum().backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close([p.grad for p in traced.parameters()], [p.grad for p in eager.parameters()])
        torch.testing.assert_close(y.grad, x.grad)


SETUP = """
import torch.nn as nn
torch.manual_seed(0)
log = []
seq = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
class Boom(nn.Module):
    def forward(self, x): raise ValueError("inside")
boom = Boom(); boom.register_forward_hook(lambda m, a, o: log.append("always"), always_call=True)
class Keyed(nn.Module):
    def forward(self, x, scale=1.0, *, shift=0.0): return x * scale + shift
before = Keyed(); before.register_forward_pre_hook(lambda m, a, k: (a, {**k, "shift": 3.0}), with_kwargs=True)
after = Keyed(); after.register_forward_hook(lambda m, a, k, o: o * k.get("scale", 5.0), with_kwargs=True)
"""
ROWS = table("""
# called although the module raises
try: boom(x)
except ValueError as e: return str(e), list(log), log.clear(), x + 1
# with keyword arguments
return before(x, 2.0), after(x, scale=2.0), after(x)
# registered and removed inside
h = seq[0].register_forward_hook(lambda m, a, o: o * 2); r = seq(x); h.remove(); return r, len(seq[0]._forward_hooks), seq(x)
# features collected
feats = []; hooks = [m.register_forward_hook(lambda m, a, o: feats.append(o)) for m in seq]; r = seq(x); [h.remove() for h in hooks]; return feats, r
# global ones
h = nn.modules.module.register_module_forward_hook(lambda m, a, o: log.append(type(m).__name__)); r = seq(x); h.remove(); return r, list(log), log.clear()
""")


@pytest.mark.parametrize("name,text", ROWS, ids=[name for name, _ in ROWS])
def test_forward_hooks(name: str, text: str) -> None:
    check(text, SETUP, graphs=None)
