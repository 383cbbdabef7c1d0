"""Common programs are traced and compiled without torch's own compiler and without SymPy."""

from __future__ import annotations

from tests.processes import run_python

PRELUDE = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F
import dynamo
import inductor.driver.compile_fx
torch.manual_seed(0)

def same(found, expected):  # torch.testing imports SymPy
    assert len(found) == len(expected)
    assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(found, expected))

def compare(f, *args):
    same(dynamo.compile(f, backend="inductor")(*args), f(*args))
"""

CONVOLUTIONS = """
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
).eval()
with torch.no_grad():
    compare(net, torch.randn(2, 3, 12, 12))
"""

TRANSFORMER = """
table, norm = nn.Embedding(11, 8), nn.LayerNorm(8)
qkv, out, up, down = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 32), nn.Linear(32, 8)

def block(tokens, target):
    x = table(tokens)
    q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in qkv(norm(x)).chunk(3, -1))
    x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8))
    x = x + down(F.gelu(up(norm(x))))
    logits = x @ table.weight.t()
    return F.softmax(logits, -1), F.cross_entropy(logits.flatten(0, 1), target.flatten())

with torch.no_grad():
    compare(block, torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 5)))
"""

TRAINING = """
model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
x, target = torch.randn(4, 6), torch.randint(0, 5, (4,))

def loss(x, target):
    return F.cross_entropy(model(x), target)

loss(x, target).backward()
expected = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
dynamo.compile(loss, backend="inductor")(x, target).backward()
same([p.grad for p in model.parameters()], expected)
"""

TRAINING_CONVOLUTIONS = """
model = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
)
x, target = torch.randn(4, 3, 8, 8), torch.randn(4, 2)

def loss(x, target):
    return F.mse_loss(model(x), target)

dynamo.compile(loss, backend="inductor")(x, target).backward()
assert all(p.grad is not None for p in model.parameters())
"""

REFERENCES = """
image = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)

def f(x, y):
    both = torch.cat([x, torch.empty(0)])
    flags = torch.all(both, 1) | ~torch.any(both < -1, 1) | torch.logical_xor(x, y.float())[:, 0]
    spread = F.elu(x) + torch.logaddexp(x, x * 2) + torch.heaviside(x, x) - x.remainder(3)
    return flags, spread, torch.cat([image, image.contiguous()], 1), F.huber_loss(x, x * 2)

with torch.no_grad():
    compare(f, torch.randn(3, 3), torch.randn(3, 3, dtype=torch.float64))
"""

CHECK = """
assert not dynamo.counters["graph_break"], (NAME, dict(dynamo.counters["graph_break"]))
loaded = [name for name in HEAVY if name in sys.modules]
assert not loaded, (NAME, loaded)
"""

PROGRAMS = {
    "convolutions": CONVOLUTIONS,
    "transformer": TRANSFORMER,
    "training": TRAINING,
    "training convolutions": TRAINING_CONVOLUTIONS,
    "references": REFERENCES,  # last: these kernels of torch import SymPy
}


def test_compiles_without_heavy_imports() -> None:
    """In one process, one program after another: each must do without."""
    code = PRELUDE
    for name, program in PROGRAMS.items():
        heavy = ["torch._dynamo"] + ["sympy"] * (name != "references")
        code += program + f"NAME, HEAVY = {name!r}, {heavy}" + CHECK
    done = run_python("-c", code, bare=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_references_of_torch_obey_a_compiler_that_is_loaded_later() -> None:
    """They are switched off for torch.compile as without this project."""
    code = """
import sys
import torch
import dynamo.shapes.fake
x = torch.randn(3, device="meta")
torch.all(x)
assert "torch._dynamo" not in sys.modules
import torch._dynamo
asked = []
disable = torch._dynamo.disable
torch._dynamo.disable = lambda fn, *args, **kwargs: asked.append(fn) or disable(fn, *args, **kwargs)
torch.all(x), torch.all(x)
assert 1 <= len(asked) == len(set(asked)), asked
assert torch.all(x).shape == ()
"""
    done = run_python("-c", code, bare=True)
    assert done.returncode == 0, done.stderr[-3000:]
