"""Gradients inside of programs: `.grad`, hooks, autograd, autograd functions, checkpoints.

A row is `# name | number of graphs of two calls and what they break into`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import dynamo
from tests.features.programs import COMMON, FUNCTIONS, make_tests, rows_of

SETUP = COMMON + FUNCTIONS + """
bn = nn.BatchNorm1d(3)
from torch.utils.checkpoint import checkpoint
class Scaled(Function):
    @staticmethod
    def forward(ctx, a, k): ctx.k, ctx.shape, ctx.other = k, a.shape, {"z": 2}; return a * k
    @staticmethod
    def backward(ctx, g): return (g * ctx.k * ctx.other["z"]).view(ctx.shape), None
class Many(Function):
    @staticmethod
    def forward(ctx, a, how, xs, d, none): ctx.n = sum(xs) * d["k"]; return a * ctx.n if how == "mul" else a
    @staticmethod
    def backward(ctx, g): return g * ctx.n, None, None, None, None
class Dirty(Function):
    @staticmethod
    def forward(ctx, a): a.mul_(2); ctx.mark_dirty(a); return a
    @staticmethod
    def backward(ctx, g): return g * 2
class Once(Function):
    @staticmethod
    def forward(ctx, a): ctx.save_for_backward(a); return a.exp()
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g): a, = ctx.saved_tensors; return g * a.exp() * 2
class TwoOut(Function):
    @staticmethod
    def forward(ctx, a): return a * 2, a * 3
    @staticmethod
    def backward(ctx, g, h): return g * 2 + h * 3 + (h == 0)
class TwoOutRaw(Function):
    @staticmethod
    def forward(ctx, a): ctx.set_materialize_grads(False); return a * 2, a * 3
    @staticmethod
    def backward(ctx, g, h): return g * 2 if h is None else g * 2 + h * 3
class Modern(Function):
    @staticmethod
    def forward(a, b): return a * b
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, g): a, b = ctx.saved_tensors; return g * b * 3, g * a
class Sorted(Function):
    @staticmethod
    def forward(ctx, a):
        v, i = a.sort(-1); ctx.mark_non_differentiable(i); ctx.save_for_backward(i); return v, i
    @staticmethod
    def backward(ctx, g, _): i, = ctx.saved_tensors; return torch.zeros_like(g).scatter(-1, i, g)
class SavesMade(Function):
    @staticmethod
    def forward(ctx, a): b = a.sin(); ctx.save_for_backward(b, a); return b * a
    @staticmethod
    def backward(ctx, g): b, a = ctx.saved_tensors; return g * (b + a * a.cos())
class Needs(Function):
    @staticmethod
    def forward(ctx, a, b): ctx.save_for_backward(a, b); return a * b
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b * 2 if ctx.needs_input_grad[0] else None, g * a if ctx.needs_input_grad[1] else None
class Same(Function):
    @staticmethod
    def forward(ctx, a): return a
    @staticmethod
    def backward(ctx, g): return g * 7
class Viewed(Function):
    @staticmethod
    def forward(ctx, a): return a.view(-1)
    @staticmethod
    def backward(ctx, g): return g.view(2, 3) * 2
class Numpy(Function):
    @staticmethod
    def forward(ctx, a): return torch.from_numpy(np.abs(a.detach().numpy() - 0.5))
    @staticmethod
    def backward(ctx, g): return g * 2
class Prints(Function):
    @staticmethod
    def forward(ctx, a): print("forward"); return a * 2
    @staticmethod
    def backward(ctx, g): print("backward"); return g * 2
class Raises(Function):
    @staticmethod
    def forward(ctx, a): raise ValueError("no")
class Counts(Function):
    n = 0
    @staticmethod
    def forward(ctx, a): Counts.n += 1; return a * 2
    @staticmethod
    def backward(ctx, g): Counts.n += 10; return g * 2
class STE(Function):
    @staticmethod
    def forward(ctx, a): return (a > 0.5).float()
    @staticmethod
    def backward(ctx, g): return F.hardtanh(g)
class Reverse(Function):
    @staticmethod
    def forward(ctx, a, k): ctx.k = k; return a.view_as(a)
    @staticmethod
    def backward(ctx, g): return -ctx.k * g, None
cube = Cube.apply
class FMod(nn.Module):
    def __init__(self): super().__init__(); self.p = nn.Parameter(torch.ones(3))
    def forward(self, x): return Cube.apply(x * self.p) + self.p
fmod = FMod()
"""

ROWS = rows_of('''
# grad: read none | 1
return x * 2, w.grad is None, x.grad is None
# grad: set none | 1
w.grad = None; return x * w
# grad: zeroed | 2
if w.grad is not None: w.grad.zero_()
return x * w
# grad: scaled | 2
if w.grad is not None: w.grad.mul_(0.5)
return (x * w).sin()
# grad: assigned tensor | 1
w.grad = y[0].clone(); return x * w
# grad: assigned, then it gets other sizes | 2
g = y[0].clone(); w.grad = g; g.unsqueeze_(0); return w.grad * 2, w.grad is g
# grad: assigned, then it is transposed as a gradient | 2
x.grad = y.clone(); x.grad.t_(); return x.grad * 2
# grad: assigned, then its owner gets other sizes | 2
t = y.detach(); y.grad = x.detach() * 2; y.unsqueeze_(0); return y.grad * 2, y
# grad: read value | 2
g = w.grad
return x * w + (g if g is not None else 0)
# grad: added | 2
if w.grad is None: w.grad = torch.zeros_like(w)
w.grad += 1
return x * w
# grad: clipped | 2
if w.grad is not None: torch.nn.utils.clip_grad_norm_([w], 0.1)
return x * w
# grad: of intermediate | 1
t = x * w; return t * 2, t.requires_grad
# grad: data in place | 2
with torch.no_grad():
    if w.grad is not None: w.sub_(0.1 * w.grad)
return x * w
# grad: del | 1
w.grad = None
if hasattr(w, "grad"): return x * w
# grad: parameters' gradients zeroed | 2
lin.zero_grad(); return lin(x)
# grad: parameters' gradients zeroed in place | 2
lin.zero_grad(set_to_none=False); return lin(x)
# grad: norms of gradients | 2
n = [p.grad.norm() for p in lin.parameters() if p.grad is not None]
return lin(x), sum(n) if n else 0
# hook: on input | 1
seen = []
h = x.register_hook(lambda g: g * 2)
return x * y
# hook: on intermediate | 1
t = x * 2
t.register_hook(lambda g: g * 3)
return t * y
# hook: on intermediate, removed | 1
t = x * 2
h = t.register_hook(lambda g: g * 3)
h.remove()
return t * y
# hook: appends | 1
t = x * 2
t.register_hook(lambda g: log.append(g.sum().item()))
return (t * y).sum()
# hook: on a parameter made outside | 1
def f(x, y):
    h = w.register_hook(scale)
    out = x * w
    return out
# hook: two on intermediate | 1
t = x.sin()
t.register_hook(lambda g: g + 1); t.register_hook(lambda g: g * 2)
return t * t
# hook: with closure over tensor | 1
t = x.sin(); s = y.sum()
t.register_hook(lambda g: g * s)
return t * 2
# hook: named function | 1
t = x.sin(); t.register_hook(scale); return t * t
# hook: partial | 1
t = x.sin(); t.register_hook(functools.partial(scale_by, k=4)); return t * t
# hook: post accumulate outside | 1
return x * accumulated
# hook: post accumulate inside | 1
def f(x, y):
    w.register_post_accumulate_grad_hook(lambda p: log.append(1))
    return x * w
# hook: retain_grad | 1
t = x.sin(); t.retain_grad(); return t * 2, t
# hook: requires_grad on intermediate without history | 1
t = y * 2; t.requires_grad_(); return t * x, t
# hook: requires_grad on a new tensor | 1
t = torch.ones(3); t.requires_grad = True; return t * x
# hook: detach_ | 1
t = x * 2; t.detach_(); return t * x
# hook: detach_ of view | 2
t = (x * 2)[0]
try: t.detach_()
except RuntimeError as e: return x * 2, str(e)[:30]
return t * 2
# hook: set requires_grad false | 1
t = y * 2; t.requires_grad = True; t.requires_grad = False; return t * x
# hook: module full backward | 1
return with_backward_hook(x)
# hook: module backward pre | 1
return with_backward_pre_hook(x)
# autograd: grad inside | 2
(g,) = torch.autograd.grad((x * x).sum(), x); return g * 2
# autograd: grad with create_graph | 2
(g,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True); return g.pow(2).sum()
# autograd: backward inside | 2
loss = (x * w).sum(); loss.backward(); return loss.detach(), w.grad.clone()
# autograd: backward inside then more | 2
w.grad = None; t = (x * w).sin(); t.sum().backward(); return t.detach() * 2, w.grad * 2
# autograd: gradient penalty | 2
t = lin(x); (g,) = torch.autograd.grad(t.sum(), x, create_graph=True); return t.mean() + (g.norm(dim=1) - 1).pow(2).mean()
# autograd: saved tensors hooks | 0
def pack(t): return t
def unpack(t): return t
with torch.autograd.graph.saved_tensors_hooks(pack, unpack): t = x.sin() * x
return t * 2
# autograd: saved tensors hooks that count | 0
def f(x, y):
    def pack(t): log.append("p"); return t
    def unpack(t): log.append("u"); return t
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack): t = x.sin() * x
    return t * 2
# autograd: saved tensors hooks that change | 0
with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t): t = x * x
return t.sum()
# autograd: save_on_cpu | 2
with torch.autograd.graph.save_on_cpu(): t = x.sin() * x
return t.sum()
# autograd: set_multithreading and anomaly | 2
with torch.autograd.set_multithreading_enabled(False): t = x.sin()
return t * x
# autograd: anomaly | 2
with torch.autograd.detect_anomaly(check_nan=False): t = x.sin()
return t * x
# autograd: graph increment version | 2
t = y * 2; v = t._version; t.add_(1); return t * x, t._version - v
# autograd: functional jacobian | 1
return torch.autograd.functional.jacobian(lambda a: a * a, y)
# autograd: functional vjp | 1
return torch.autograd.functional.vjp(lambda a: (a * a).sum(), y)
# autograd: forward ad | 0
import torch.autograd.forward_ad as fwAD
with fwAD.dual_level():
    d = fwAD.make_dual(y, torch.ones_like(y)); t = fwAD.unpack_dual(d.sin()).tangent
return t * x
# autograd: backward with gradient argument | 2
t = x * w; t.backward(torch.ones_like(t), retain_graph=True); return w.grad.clone()
# autograd: grad of non scalar | 2
return torch.autograd.grad(x * x, x, torch.ones_like(x))[0] + y
# autograd: allow unused | 1
g = torch.autograd.grad((x * 2).sum(), [x, w], allow_unused=True); return g[0], g[1] is None
# checkpoint: not reentrant | 1
return checkpoint(lambda a: lin(a).sin(), x, use_reentrant=False)
# checkpoint: reentrant | 1
return checkpoint(lambda a: lin(a).sin(), x, use_reentrant=True)
# checkpoint: nested | 1
return checkpoint(lambda a: checkpoint(lambda b: b.sin() * b, a, use_reentrant=False).cos(), x, use_reentrant=False)
# checkpoint: dropout random | 1
return checkpoint(lambda a: F.dropout(lin(a), 0.5) * a, x, use_reentrant=False)
# checkpoint: dropout reentrant random | 1
return checkpoint(lambda a: F.dropout(lin(a), 0.5) * a, x, use_reentrant=True)
# checkpoint: dropout without rng state random | 1
return checkpoint(lambda a: F.dropout(lin(a), 0.5).detach() * a, x, use_reentrant=False, preserve_rng_state=False)
# checkpoint: sequential | 1
return torch.utils.checkpoint.checkpoint_sequential([lin, torch.sin, lin], 2, x, use_reentrant=False)
# checkpoint: keyword arguments | 1
return checkpoint(lambda a, k=1: (a * k).sin(), x, k=3, use_reentrant=False)
# checkpoint: several outputs | 1
a, b = checkpoint(lambda a: (a.sin(), a.cos()), x, use_reentrant=False); return a * b
# checkpoint: batch norm | 1
return checkpoint(bn, x, use_reentrant=False), bn.running_mean.clone()
# checkpoint: under autocast | 1
with torch.autocast("cpu", dtype=torch.bfloat16): a = checkpoint(lin, x, use_reentrant=False)
return a.float()
# checkpoint: selective | 1
from torch.utils.checkpoint import create_selective_checkpoint_contexts
ctx = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
return checkpoint(lambda a: (a @ y.T).sin(), x, use_reentrant=False, context_fn=ctx)
# checkpoint: with counter | 0
def f(x, y):
    def g(a): log.append(1); return a.sin() * a
    return checkpoint(g, x, use_reentrant=False)
# function: ctx attributes | 1
return Scaled.apply(x, 3.0)
# function: non tensor arguments | 1
return Many.apply(x, "mul", [1, 2], {"k": 2}, None)
# function: mark dirty | 1
t = x * 1; r = Dirty.apply(t); return r * 2, t
# function: once differentiable | 1
return Once.apply(x)
# function: materialize | 1
a, b = TwoOut.apply(x); return a * 2
# function: not materialized | 1
a, b = TwoOutRaw.apply(x); return a * 2
# function: double backward | 3
(g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True); return g.sum()
# function: setup context | 1
return Modern.apply(x, y)
# function: non differentiable output | 1
a, i = Sorted.apply(x); return a * i
# function: save intermediate | 1
return SavesMade.apply(x)
# function: needs_input_grad | 1
return Needs.apply(x, y)
# function: returns input | 1
return Same.apply(x) * 2
# function: view output | 1
return Viewed.apply(x * 1)
# function: numpy inside | 1
return Numpy.apply(x)
# function: prints | 1
return Prints.apply(x)
# function: under no_grad | 1
with torch.no_grad(): a = Cube.apply(x)
return a * x
# function: inside of a module | 1
return fmod(x)
# function: raising in forward | 1
try: return Raises.apply(x)
except ValueError as e: return str(e), x * 2
# function: counting on class | 2
return Counts.apply(x), Counts.n
# function: straight through | 1
return STE.apply(x) * x
# function: gradient reversal | 1
return Reverse.apply(x, 0.5).sum() + w.sum()
# function: called through a staticmethod alias | 1
return cube(x) * 2
# function: hooks on its output | 1
t = Cube.apply(x); t.register_hook(lambda g: g * 2); return t * 2
''')

# Rows that run on the default backend too.
COMPILED = [
    "grad: added",
    "grad: clipped",
    "hook: on intermediate",
    "autograd: backward inside",
    "autograd: gradient penalty",
    "autograd: saved tensors hooks that change",
    "autograd: forward ad",
    "function: ctx attributes",
    "function: not materialized",
    "checkpoint: nested",
    "checkpoint: reentrant",
    "checkpoint: selective",
    "checkpoint: dropout random",
    "checkpoint: batch norm",
]


test_captured, test_compiled = make_tests(ROWS, SETUP, COMPILED)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_tangents_pass_through_what_was_compiled_without_them(backend: str) -> None:
    compiled = dynamo.compile(lambda a: a.sin() * 2, backend=backend)
    x, tangent = torch.rand(3), torch.rand(3)
    compiled(x)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, tangent))).tangent
    torch.testing.assert_close(found, 2 * x.cos() * tangent)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_hooks_on_saved_tensors_around_what_was_compiled_without_them(backend: str) -> None:
    def program(a: torch.Tensor) -> Any:
        return (a.sin() * a).sum()

    compiled = dynamo.compile(program, backend=backend)
    compiled(torch.rand(3, requires_grad=True))
    found = []
    for run in (program, compiled):
        x = torch.arange(3.0).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t + 1):
            run(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_offloading_is_compiled() -> None:
    compiled = dynamo.compile(lambda a: (a.sin() * a).sum(), backend="inductor", fullgraph=True)
    x = torch.rand(3, requires_grad=True)
    before = dynamo.counters["stats"]["graphs"]
    with torch.autograd.graph.save_on_cpu():
        compiled(x).backward()
    assert dynamo.counters["stats"]["graphs"] == before + 1
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())
