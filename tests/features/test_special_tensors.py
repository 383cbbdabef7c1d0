"""Transforms, operators of libraries, subclasses, special kinds of tensors, storages.

A row is `# name | number of graphs of two calls and what they break into`.
"""

from __future__ import annotations

from tests.features.programs import COMMON, FUNCTIONS, make_tests, rows_of

SETUP = COMMON + FUNCTIONS + """
import builtins
kept_ops = builtins.__dict__.setdefault('_kept_ops_of_tests', {})
import copy
from torch.library import custom_op
if hasattr(torch.ops.prog, "twice"):
    twice = kept_ops["twice"]
else:
    twice = custom_op("prog::twice", lambda a: a * 2, mutates_args=(), schema="(Tensor a) -> Tensor")
    twice.register_fake(lambda a: torch.empty_like(a))
    twice.register_autograd(lambda ctx, g: g * 2)
    kept_ops["twice"] = twice
    cubed = custom_op("prog::cubed", lambda a: a ** 3, mutates_args=(), schema="(Tensor a) -> Tensor")
    cubed.register_fake(lambda a: torch.empty_like(a))
    def _setup(ctx, inputs, output): ctx.save_for_backward(*inputs)
    cubed.register_autograd(lambda ctx, g: g * 5 * ctx.saved_tensors[0] ** 2, setup_context=_setup)
    def _bump(a, k): a.add_(k)
    custom_op("prog::bump", _bump, mutates_args=("a",), schema="(Tensor(a!) a, float k) -> ()")
    custom_op("prog::nofake", lambda a: a * 2, mutates_args=(), schema="(Tensor a) -> Tensor")
    joined = custom_op("prog::joined", lambda ts: torch.cat(ts), mutates_args=(), schema="(Tensor[] ts) -> Tensor")
    joined.register_fake(lambda ts: torch.cat(ts))
    joined.register_autograd(lambda ctx, g: ([g[:2], g[2:]],))
    maybe = custom_op("prog::maybe", lambda a, b: a.clone() if b is None else a + b, mutates_args=(), schema="(Tensor a, Tensor? b) -> Tensor")
    maybe.register_fake(lambda a, b: torch.empty_like(a))
    two = custom_op("prog::two", lambda a: (a + 1, a * 2), mutates_args=(), schema="(Tensor a) -> (Tensor, Tensor)")
    two.register_fake(lambda a: (torch.empty_like(a), torch.empty_like(a)))
    positive = custom_op("prog::positive", lambda a: a[a > 0.5].clone(), mutates_args=(), schema="(Tensor a) -> Tensor")
    positive.register_fake(lambda a: a.new_empty((torch.library.get_ctx().new_dynamic_size(),)))
    lib2 = torch.library.Library("prog2", "FRAGMENT"); kept_ops["lib2"] = lib2
    lib2.define("neg3(Tensor a) -> Tensor")
    lib2.impl("neg3", lambda a: a * -3, "CompositeImplicitAutograd")
import io, pickle, time, logging, threading, weakref, warnings
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
class Fn:
    calls = 0
    def __torch_function__(self, func, types, args=(), kwargs=None): return func.__name__
class CountMode(TorchFunctionMode):
    n = 0
    def __torch_function__(self, func, types, args=(), kwargs=None): self.n += 1; return func(*args, **(kwargs or {}))
class DispatchMode(TorchDispatchMode):
    n = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None): self.n += 1; return func(*args, **(kwargs or {}))
class Sub(torch.Tensor): pass
sub = torch.rand(3).as_subclass(Sub)
class Logged(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__); return super().__torch_function__(func, types, args, kwargs or {})
logged = torch.rand(3).as_subclass(Logged)
class SubParam(nn.Parameter): pass
subparam = SubParam(torch.ones(3))
class Twice(torch.Tensor):
    @staticmethod
    def __new__(cls, a): r = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype); r.a = a; return r
    def __init__(self, a): pass
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[t.a if isinstance(t, cls) else t for t in args], **(kwargs or {})))
    def __repr__(self): return "Twice"
sparse = torch.eye(2).to_sparse()
w2 = torch.rand(4, 3, requires_grad=True)
quantised = torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8)
cpar = nn.Parameter(torch.rand(3, dtype=torch.complex64))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scripted = torch.jit.trace(nn.Linear(3, 3), torch.rand(2, 3))
    traced_fn = torch.jit.trace(lambda a: a.sin(), torch.rand(2, 3))
import torch.fx
fx_lin = torch.fx.symbolic_trace(nn.Linear(3, 3))
inner_compiled = dynamo.compile(lambda a: a.sin() * 2, backend="eager")
not_compiled = dynamo.disable(lambda a: a.sin() * 2)
"""

ROWS = rows_of('''
# func: vmap | 1
return torch.vmap(lambda a, b: (a * b).sum())(x, y)
# func: vmap in_dims | 1
return torch.vmap(lambda a, b: a @ b, in_dims=(1, None), out_dims=-1)(x, y[:, 0])
# func: vmap nested | 1
return torch.vmap(torch.vmap(lambda a, b: a.sin() * b))(x, y)
# func: vmap chunked | 1
return torch.vmap(lambda a: a.sin().sum(), chunk_size=1)(x)
# func: vmap random | 1
return torch.vmap(lambda a: a + torch.rand(3), randomness="different")(x)
# func: vmap of a module | 1
return torch.vmap(lin)(x)
# func: vmap with in place | 1
def g(a): b = a.clone(); b.add_(1); return b * a
return torch.vmap(g)(x)
# func: grad | 1
return torch.func.grad(lambda a: (a ** 3).sum())(x)
# func: grad and value | 1
g, v = torch.func.grad_and_value(lambda a: (a ** 3).sum())(x); return g, v
# func: grad has_aux argnums | 1
g, aux = torch.func.grad(lambda a, b: ((a * b).sum(), a + b), argnums=(0, 1), has_aux=True)(x, y); return g, aux
# func: per sample grads | 1
params = {k: v.detach() for k, v in lin.named_parameters()}
def loss(p, a, b): return ((torch.func.functional_call(lin, p, (a,)) - b) ** 2).sum()
return torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
# func: grad of grad | 1
return torch.func.grad(lambda a: torch.func.grad(lambda b: (b ** 4).sum())(a).sum())(x)
# func: jvp | 1
return torch.func.jvp(lambda a: a.sin() * a, (x,), (y,))
# func: vjp | 1
out, pull = torch.func.vjp(lambda a: a.sin() * a, x); return out, pull(y)
# func: jacrev jacfwd | 1
return torch.func.jacrev(torch.cos)(x[0]), torch.func.jacfwd(torch.sin)(x[0])
# func: hessian | 1
return torch.func.hessian(lambda a: (a ** 3).sum())(x[0])
# func: vmap of custom function | 0
return torch.vmap(lambda a: Cube.apply(a))(x)
# func: grad of custom function | 1
return torch.func.grad(lambda a: Vmappable.apply(a).sum())(x)
# func: no_grad within grad | 1
def g(a):
    with torch.no_grad(): b = a * 2
    return (a * b).sum()
return torch.func.grad(g)(x)
# func: mutated closure in vmap | 1
seen = []
def g(a): seen.append(1); return a * 2
return torch.vmap(g)(x), seen
# control: cond both ways | 1
return torch.cond(y[0, 0] > 0.5, lambda a, b: a * b, lambda a, b: a + b, (x, y))
# control: cond with python bool | 1
return torch.cond(y.shape[0] == 2, lambda a: a.sin(), lambda a: a.cos(), (x,))
# control: associative_scan | 1
from torch._higher_order_ops.associative_scan import associative_scan
return associative_scan(lambda a, b: a + b, y, 0, combine_mode="generic"), x * 1
# library: custom op | 1
return torch.ops.prog.twice(x) * 2
# library: custom op with gradient | 1
return torch.ops.prog.cubed(x) * 2
# library: custom op mutating | 1
t = y.clone(); torch.ops.prog.bump(t, 2.0); return t * x
# library: custom op mutating an input | 1
torch.ops.prog.bump(y, 2.0); return y * x
# library: custom op mutating view | 1
t = y.clone(); torch.ops.prog.bump(t[0], 2.0); return t * x
# library: custom op without fake | 2
return torch.ops.prog.nofake(y) * x
# library: custom op python function | 1
return twice(x) + 1
# library: custom op with list | 1
return torch.ops.prog.joined([x, y]) * 2
# library: custom op with optional | 1
return torch.ops.prog.maybe(y, None) * x, torch.ops.prog.maybe(y, w.detach())
# library: two outputs | 1
a, b = torch.ops.prog.two(y); return a * x + b
# library: data dependent fake | 5
return torch.ops.prog.positive(y).sum() * x
# library: aten overloads | 1
return torch.ops.aten.add.Tensor(x, y, alpha=2) + torch.ops.aten.mul(x, 2) + torch.ops.aten.sum.dim_IntList(x, [0])
# library: prims | 1
return torch.ops.prims.sin(y) * x
# library: in place aten | 1
t = y.clone(); torch.ops.aten.add_(t, 1); torch.ops.aten.mul_.Scalar(t, 2); return t * x
# library: autograd kernel from impl | 1
return torch.ops.prog2.neg3(x) * 1
# override: class with __torch_function__ | 0
return torch.add(Fn(), x), Fn().calls
# override: class with __torch_function__ method | 1
return torch.sum(Fn()), x * 2
# override: function mode | 2
with CountMode() as m: t = x * 2 + 1
return t, m.n
# override: function mode around the call | 1
return x.sin() + y.cos()
# override: has_torch_function | 1
return torch.overrides.has_torch_function((x,)), torch.overrides.is_tensor_like(Fn()), x * 2
# override: DisableTorchFunctionSubclass | 1
with torch._C.DisableTorchFunctionSubclass(): t = x * 2
return t
# subclass: argument | 1
s = y.as_subclass(Sub); return (s * 2 + x), type(s * 2).__name__
# subclass: global | 1
return sub * x, type(sub).__name__
# subclass: with torch function | 2
return (logged * 2).as_subclass(torch.Tensor), list(Logged.seen)[-1:]
# subclass: parameter subclass | 1
return x * subparam, type(subparam).__name__
# subclass: buffer | 2
return x * nn.Buffer(torch.ones(3)), isinstance(nn.Buffer(torch.ones(1)), nn.Buffer)
# subclass: wrapper | 1
t = Twice(y) + 1; return x * 2, type(t).__name__
# special: nested | 2
n = torch.nested.nested_tensor([y[0], y[1, :2]]); return n.to_padded_tensor(0.0), x * 2
# special: nested jagged | 2
n = torch.nested.nested_tensor([y[0], y[1, :2]], layout=torch.jagged); return n.values() * 2, x * 2
# special: sparse | 4
s = (y > 0.5).float().to_sparse(); return torch.sparse.mm(s, x.T), s.values().sum()
# special: sparse argument | 0
return torch.sparse.mm(sparse, x), sparse.is_sparse
# special: sparse csr | 1
s = y.to_sparse_csr(); return s @ x.T
# special: sparse gradient | 1
e = F.embedding(torch.tensor([0, 1]), w2, sparse=True); return e * 2
# special: quantised | 1
q = torch.quantize_per_tensor(y, 0.1, 0, torch.quint8); return q.dequantize() * x, q.int_repr()
# special: quantised argument | 1
return quantised.dequantize() * x, quantised.q_scale()
# special: fake quantise | 1
return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
# special: mkldnn | 1
return y.to_mkldnn().to_dense() * x
# special: complex | 1
z = torch.complex(x, y); return (z * z.conj()).real, z.abs(), z.angle(), torch.fft.fft(y).imag
# special: complex parameter | 1
return (cpar * torch.complex(y, y)).abs().sum()
# special: complex view | 1
z = torch.view_as_complex(x.reshape(3, 2)); return torch.view_as_real(z * 2j), z.conj().imag, (z.H @ z).real
# special: conj bit | 1
z = torch.complex(y, y).conj(); return z.is_conj(), z.resolve_conj().imag, x * 2
# special: meta tensor | 1
m = torch.empty(2, 3, device="meta"); return (m + 1).shape, x * 2
# special: float8 | 1
t = y.to(torch.float8_e4m3fn); return t.float() * x
# special: uint16 | 1
return y.mul(10).to(torch.uint16).int() + 1, x * 2
# special: zero dim and empty | 1
return torch.zeros(0, 3).sum(0) + x, torch.tensor(3.0) * x, x[:0]
# size: arithmetic | 1
s = x.shape; return torch.Size([s[0] * 2, *s[1:]]), s.numel(), s[::-1], s + (1,), tuple(s) + (2,), s.index(3), s.count(2), 2 in s, max(s), x.reshape(s[::-1])
# size: types | 1
s = x.shape; return type(s + s).__name__, type(s[:1]).__name__, type(s * 2).__name__, isinstance(s, tuple), str(s), s == torch.Size([2, 3]), hash(s) == hash((2, 3)), x * 2
# size: made by an operation on numbers | 1
n = torch.div(x.shape[1] * 4, 6, rounding_mode="trunc"); m = torch.tensor(3) * 1; return x.view(n, m) * n
# size: constant that is written | 2
n = torch.tensor(2); n.add_(1); return x.view(-1, int(n)) * 2
# special: conjugated and negated arguments | 2
z = torch.complex(y, y).conj(); dynamo.graph_break(); return z.imag * x, (z * 2).imag
# special: argument without memory | 2
z = torch._efficientzerotensor((3,)); dynamo.graph_break(); return z * x + 1
# size: stride and views | 1
t = x.t(); return t.stride(), t.is_contiguous(), t.contiguous().stride(), x.as_strided((2, 2), (3, 1)), t.storage_offset(), x[1:].storage_offset()
# size: memory format | 1
t = x.view(1, 2, 3, 1).contiguous(memory_format=torch.channels_last); return t.is_contiguous(memory_format=torch.channels_last), t.stride(), t * 2
# data: read | 1
return x.data * 2, x * w.data
# data: write through | 1
d = y.data; d.add_(1); return y * x
# data: assign intermediate | 2
t = y * 2; t.data = torch.ones(3); return t * x
# data: assign parameter | 2
w.data = w.data * 0.5; return w * x
# data: augmented parameter | 2
w.data -= 0.1; return w * x
# data: no_grad in place | 1
with torch.no_grad(): w.mul_(0.5).add_(0.1)
return w * x
# data: no_grad copy_ | 1
with torch.no_grad(): w.copy_(y[0])
return w * x
# data: index assign under no_grad | 1
with torch.no_grad(): w[0] = 3.0
return w * x
# data: set_ | 2
t = torch.empty(0); t.set_(y); return t * x, t.data_ptr() == y.data_ptr()
# data: set_ with storage | 2
t = torch.empty(0).set_(y.untyped_storage(), 0, (3,), (1,)); return t * x
# data: resize_ | 2
t = torch.zeros(2, 3); t.resize_(4); t.zero_(); return t, x * 2
# data: resize_as_ | 2
t = torch.zeros(1); t.resize_as_(y).copy_(y); return t * x
# data: storage reads | 3
return y.untyped_storage().nbytes(), y.data_ptr() == y.view(-1).data_ptr(), x * 2
# data: swap_tensors | 2
a, b = torch.ones(3), torch.zeros(3); torch.utils.swap_tensors(a, b); return a, b, x * 2
# data: in place on graph input and alias | 1
v = y[0]; y.mul_(2); return v * x
# data: in place on leaf raises | 1
try: x.add_(1)
except RuntimeError as e: return x * 2, str(e)[:40]
# data: in place on view of leaf raises | 2
try: x[0].add_(1)
except RuntimeError as e: return x * 2, str(e)[:40]
# data: in place of saved raises later | 1
t = x.sin(); u = t * t; t.add_(1); return u
# data: out argument | 1
o = torch.empty(2, 3); torch.add(y, 1, out=o); return o * x
# data: out argument input | 1
torch.mul(y, 2, out=y); return y * x
# data: out argument of other shape | 2
o = torch.empty(0); torch.add(y, 1, out=o); return o * x, o.shape
# data: out argument several | 1
v, i = torch.empty(2), torch.empty(2, dtype=torch.long); torch.max(y, 1, out=(v, i)); return v, i, x * 2
# data: out argument list cat | 1
o = torch.empty(4, 3); r = torch.cat([y, y], out=o); return r is o, o * 2, x * 2
# data: out requires grad raises | 1
try: torch.add(x, 1, out=w)
except RuntimeError as e: return x * 2, str(e)[:30]
# data: copy with broadcast and types | 1
t = torch.zeros(2, 3, dtype=torch.float64); t.copy_(x); return t * 2
# data: index_put accumulate | 1
t = torch.zeros(3); t.index_put_((torch.tensor([0, 0, 1]),), torch.ones(3), accumulate=True); return t * x
# data: masked assign | 1
t = x.clone(); t[t > 0.5] = 0; return t
# data: scatter | 1
return torch.zeros(2, 3).scatter_add_(1, torch.tensor([[0, 0, 1], [2, 2, 0]]), x)
# data: foreach | 1
ts = [x * 1, y * 1]; torch._foreach_add_(ts, 1.0); return torch._foreach_mul(ts, 2.0), torch._foreach_norm(ts)
# io: save | 1
b = io.BytesIO(); torch.save(y, b); b.seek(0); return torch.load(b) * x
# io: save state dict | 2
b = io.BytesIO(); torch.save(lin.state_dict(), b); return len(b.getvalue()) > 10, lin(x)
# io: pickle | 1
return pickle.loads(pickle.dumps(y)) * x
# io: deepcopy tensor | 1
return copy.deepcopy(y) * x, copy.copy(y).data_ptr() == y.data_ptr()
# io: deepcopy module | 1
return copy.deepcopy(lin)(x)
# io: format a tensor | 2
return f"{y.sum():.3f}", str(y.shape), repr(y.dtype), x * 2
# io: warnings | 9
with warnings.catch_warnings(record=True) as c: warnings.simplefilter("always"); warnings.warn("hm"); t = x * 2
return t, [str(i.message) for i in c]
# io: from_dlpack object | 1
return torch.from_dlpack(y) * x
# io: jit script module | 1
return scripted(x) * 2
# io: compiled inside | 1
return inner_compiled(x) * 2
# io: torch compile disable | 1
return not_compiled(x) * 2
# io: equal | 1
return torch.equal(y, y), x * 2
''')

# Rows that run on the default backend too.
COMPILED = [
    "func: hessian",
    "func: per sample grads",
    "special: quantised",
    "special: conjugated and negated arguments",
    "special: argument without memory",
    "size: made by an operation on numbers",
    "data: out argument of other shape",
    "data: write through",
    "library: custom op with gradient",
    "library: custom op mutating view",
]


test_captured, test_compiled = make_tests(ROWS, SETUP, COMPILED)
