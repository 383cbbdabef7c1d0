"""Snippets over tensors and torch's state; for the form see `objects.py`."""

BLOCKS = r'''
# tensor_attributes
---
t = x * 2
t.foo = _(_V)
y.bar = [_N]
_()
out.append([t.foo, y.bar, hasattr(x, "foo"), t])
y.bar.append(1)
del t.foo
out.append([hasattr(t, "foo"), vars(y)])
del y.bar

# grad_and_data
---
p = torch.ones(3, requires_grad=True)
q = (p * _N).sum()
_()
q.backward()
out.append([p.grad, p.is_leaf, q.requires_grad, q.grad_fn is None])
g = p.grad
p.grad.zero_()
out.append(g)
p.grad = None
_()
(p * 2).sum().backward()
(p * 3).sum().backward()
out.append([p.grad, p.grad is g])
p.data = torch.zeros(2)
out.append([p.shape, p.requires_grad])
with torch.no_grad():
    p.add_(_(1))
out.append(p)

# requires_grad_changes
---
t = torch.ones(2, 3)
t.requires_grad_(_(True))
u = t * x
out.append([u.requires_grad, u.is_leaf])
_()
v = u.detach()
v.mul_(2)
out.append([u, v.requires_grad])
try:
    u.requires_grad = False
except RuntimeError as e:
    out.append(type(e).__name__)
try:
    t.add_(1)
except RuntimeError as e:
    out.append(str(e))
t.requires_grad = False
t += _(1)
out.append(t)

# hooks
---
p = torch.ones(3, requires_grad=True)
q = p * 2
h = q.register_hook(lambda g: (LOG.append(_("hook")), g * 2)[1])
_()
q.sum().backward()
h.remove()
out.append([p.grad, list(LOG)])

# size_arithmetic
---
z = x.shape
out.append([z + (1,), z[0] * _N, z[1:], type(z[1:]).__name__, z.numel(), z == (2, 3), list(z), torch.Size([1, _(2)]) * 2, z[-1] in z, (1,) + z, type((1,) + z).__name__, type(z + z).__name__, z.index(3) if 3 in z else None, hash(z) == hash(tuple(z)), repr(z), z is x.shape, max(z), len(z), z.count(2)])

# views_in_place
---
a = x.clone()
v = a[0]
w = a.t()
v.add_(_N)
_()
w[0] *= 2
out.append([a, v, w, v._base is a])
a.unsqueeze_(0)
out.append([a.shape, v.shape, w.is_contiguous()])
b = a.view(-1)
_()
b[1:3] = _(7.0)
b[b > 5] = 0
out.append([a, b.storage_offset(), b.data_ptr() == a.data_ptr(), a.stride()])
del v
a.resize_(1, 2)
out.append(a)
c = x.expand(2, 2, 3)
d = c[0]
try:
    c.add_(1)
except RuntimeError as e:
    out.append(type(e).__name__)

# out_argument
---
o1 = torch.empty_like(x)
r = torch.add(x, _N, out=o1)
out.append([r is o1, r])
_()
torch.mul(x, 2, out=x)
o2 = torch.empty(x.t().shape).t()
torch.sub(x, 1, out=o2)
out.append([x, o2, o2.stride()])
m, i = torch.empty(0), torch.empty(0, dtype=torch.long)
torch.max(x, 1, out=(m, i))
out.append([m, i])

# numpy_round_trip
---
a = x.detach().numpy()
_()
a[0] = _N
out.append([x, a.shape, a[0].item(0)])
b = torch.from_numpy(a)
b.mul_(2)
_()
out.append([x, a.tolist(), float(a.max()), a.dtype.name, x.data_ptr() == b.data_ptr()])
import numpy as np
c = np.arange(3) + _(1)
out.append([c.tolist(), torch.as_tensor(c), (c * 1.5).tolist(), c[1].item(), int(c.sum())])

# generators_of_random
---
g = torch.Generator().manual_seed(_(5))
a = torch.randn(2, generator=g)
st = g.get_state()
b = torch.randn(2, generator=g)
_()
g.set_state(st)
out.append([a, b, torch.randn(2, generator=g), g.initial_seed()])
torch.manual_seed(_N)
c = torch.rand(2)
with torch.random.fork_rng():
    torch.manual_seed(1)
    out.append(torch.rand(1))
    _()
    out.append(torch.rand(1))
out.append([c, torch.rand(2), torch.randperm(4), torch.nn.functional.dropout(x, 0.5)])
k = torch.get_rng_state()
_()
r = torch.rand(1)
torch.set_rng_state(k)
out.append([r, torch.rand(1), torch.initial_seed()])

# default_dtype
---
old = torch.get_default_dtype()
torch.set_default_dtype(torch.float64)
try:
    out.append([torch.ones(2).dtype, (torch.arange(3) / 2).dtype, torch.tensor(1.5).dtype])
    _()
    out.append([torch.zeros(1) + _N, torch.tensor([1, 2.5]), torch.get_default_dtype()])
finally:
    torch.set_default_dtype(old)
out.append(torch.ones(1).dtype)

# grad_modes
@torch.no_grad()
def ng(t):
    _()
    return t * 2, torch.is_grad_enabled()
---
p = torch.ones(2, requires_grad=True)
out.append([ng(p)[0].requires_grad, ng(p)[1], torch.is_grad_enabled()])
prev = torch.set_grad_enabled(_(False))
out.append((p * 2).requires_grad)
_()
out.append(torch.is_grad_enabled())
torch.set_grad_enabled(True)
with torch.no_grad():
    with torch.enable_grad():
        _()
        out.append((p * 3).requires_grad)
    out.append((p * 3).requires_grad)
with torch.inference_mode():
    q = p * 2
    _()
    out.append([q.is_inference(), torch.is_inference_mode_enabled()])
out.append([torch.is_grad_enabled(), (p * 1).requires_grad])

# autocast
---
with torch.autocast("cpu", dtype=torch.bfloat16):
    a = torch.mm(x, x.t())
    _()
    with torch.autocast("cpu", enabled=_(False)):
        b = torch.mm(x, x.t())
    c = torch.mm(x, x.t()) + _N
out.append([a.dtype, b.dtype, c.dtype, torch.is_autocast_enabled("cpu")])

# tensor_bool_and_items
---
t = x.sum()
out.append(["y" if t > 0 else "n", int(t), float(t), bool(t), t.item(), round(t.item(), 2), f"{t.item():.2f}", x.tolist(), t == t, (x > 0).any().item() and _(1)])
try:
    bool(x)
except RuntimeError as e:
    out.append(str(e))
try:
    x.item()
except RuntimeError as e:
    out.append(str(e))
k = [1, 2, 3]
out.append([k[torch.tensor(1)], "a" * torch.tensor(2), list(range(torch.tensor(_(2)))), 3 in x, torch.tensor(1) in [2, 1], len(x), x.ndim])

# tensors_as_keys
---
a, b = x * 1, x * 1
m = {a: 1, b: _(2)}
out.append([m[a], m[b], a in m, len({a, b, a}), x in m, a is x, [a, b].index(a), any(v is b for v in m)])
m[a] = _V
del m[b]
_()
out.append([len(m), list(m)[0] is a, m])

# tensor_operators
---
out.append([x + _N, _N - x, x ** 2, 2 ** x, -x, abs(x), x @ x.t(), x // 2, x % 2, divmod(x, 2) if hasattr(x, "__divmod__") else 0, x == y, x < _(0.1), (x > 0) & (y > 0), ~(x > 0), x.int() << 1, 1 / (x + 10), True + x, x * 1j, x + (x > 0)])
for f in (lambda: x + "a", lambda: x @ x, lambda: x[5], lambda: x[0, 0, 0], lambda: x.view(5), lambda: x.nope, lambda: x + torch.ones(7), lambda: x < None, lambda: torch.cat([]), lambda: x.reshape("a"), lambda: torch.stack([x, x[0]])):
    try:
        out.append(f())
    except Exception as e:
        out.append([type(e).__name__, str(e)])
    _()

# tensor_iteration
---
for row in x:
    _()
    row.add_(1)
a, b = x
out.append([x, a, b.sum(), [v.item() for v in x[0]], x.unbind(1)[_(0)], list(map(torch.Tensor.dim, x)), sum(x), max(x[0]), sorted(x[0].tolist())])
for i, (p, q, r) in enumerate(x):
    out.append(p + _(i))
out.append([*zip(x, y)][0][1])

# setitem
---
a = x.clone()
a[0, 1] = _N
a[:, -1] = y[:, 0]
a[a < 0] = _(0.5)
a[[0, 1], [0, 1]] = torch.tensor([9.0, 8.0])
a[..., None, 0] += 1
_()
a[torch.tensor([0])] = a[torch.tensor([1])]
out.append([a, a[None].shape, a[..., 0], a[True].shape, a[:, [True, False, True]], a[1:, ::2], a[torch.tensor(1)], a[(0, 1)]])
try:
    a[0] = torch.ones(7)
except RuntimeError as e:
    out.append(str(e))
try:
    a[9] = 1
except IndexError as e:
    out.append(str(e))

# module_use
class Md(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 2)
        self.register_buffer("cnt", torch.zeros(1))
        self.seen = []
    def forward(self, t):
        self.cnt += 1
        self.seen.append(_(t.shape[0]))
        return self.lin(t) + self.cnt
    def __getattr__(self, name):
        if name == "magic": return _(5)
        return super().__getattr__(name)
torch.manual_seed(0)
MD = Md()
---
r = MD(x)
_()
out.append([r, MD.cnt, MD.seen, MD.magic, MD.training])
h = MD.register_forward_hook(lambda m, a, o: _(o * 2))
h2 = MD.lin.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
out.append(MD(x))
h.remove()
h2.remove()
MD.eval()
out.append([MD.training, MD.lin.training, [k for k, v in MD.named_parameters()], len(MD.state_dict())])
MD.train(_(True))
MD.extra = torch.nn.Parameter(torch.ones(1))
out.append([len(list(MD.parameters())), MD.extra])
del MD.extra
MD.seen.clear()
MD.cnt.zero_()
MD.zero_grad()

# autograd_calls
---
p = x.clone().requires_grad_()
q = (p ** 2).sum()
g, = torch.autograd.grad(q, p, create_graph=True)
_()
g2, = torch.autograd.grad(g.sum(), p)
out.append([g, g2])
with torch.no_grad():
    r = p * _N
r2 = p.detach().clone()
r2 += 1
s2 = torch.func.grad(lambda v: (v * _(2)).sum())(x)
out.append([r.requires_grad, r2, s2, p.grad])
try:
    x.sum().backward()
except RuntimeError as e:
    out.append(str(e))

# dtype_device
---
a = x.to(torch.float64)
b = x.to(x.dtype)
out.append([a.dtype, b is x, x.float() is x, x.contiguous() is x, x.type(), a.to("cpu") is a, torch.promote_types(a.dtype, x.dtype), x.dtype.is_floating_point, torch.finfo(x.dtype).eps, x.device == torch.device("cpu"), torch.result_type(x, _(1)), x.new_zeros(1).dtype, torch.tensor(_N).dtype, torch.as_tensor([1, 2]).dtype, x.half().sum(), isinstance(x, torch.FloatTensor)])

# parameter_swap
---
a, b = x.clone(), y.clone()
c = a
a.data, b.data = b.data, a.data
_()
out.append([a, b, c is a, c])
a.set_(b)
out.append([a.data_ptr() == b.data_ptr(), a])
a, b = b, a
a.copy_(_(b) * 2)
out.append([a, b])
box.t = a
box.t += 1
_()
out.append([a, box.t is a])
box.t = box.t + 1
out.append([a, box.t is a])

# no_tensor_result
---
lst = [x, x * 2]
lst2 = [torch.zeros(1)] * 2
lst2[0] += 1
_()
out.append([lst[0] is x, lst2[1], lst2[0] is lst2[1]])
tab = {"a": x}
tab["a"] = tab["a"] + _N
table["a"] += 1
out.append([tab["a"], table["a"], table])
sw = [x[0], x[1]]
sw[0], sw[1] = sw[1], sw[0]
torch._foreach_add_(sw, 1)
out.append([x, sw[0]])
'''
