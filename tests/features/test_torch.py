"""PyTorch as models use it: modules, modes, hooks, transforms; a table of snippets by feature."""

from __future__ import annotations

import pytest

from tests.features.harness import check, make_tests, table

SETUP = """
import collections, contextlib, functools, math
import torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)

class Block(nn.Module):
    scale: float = 2.0
    def __init__(self, n=3):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.norm = nn.LayerNorm(n)
        self.register_buffer("seen", torch.zeros(()))
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.5)
        self.steps = 0
        self.gain = nn.Parameter(torch.ones(n))
    def forward(self, x, *, twice=False):
        h = self.drop(self.act(self.norm(self.linear(x)))) * self.scale * self.gain
        return h * 2 if twice else h

class Counting(Block):
    def forward(self, x):
        self.steps += 1
        self.seen += 1
        self.last = x
        return super().forward(x) + self.steps

class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.table = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.seq = nn.Sequential(collections.OrderedDict(one=nn.Linear(3, 3), two=nn.Tanh()))
        self.params = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.pdict = nn.ParameterDict({"q": nn.Parameter(torch.ones(3))})
        self.none = None
    def forward(self, x):
        for i, block in enumerate(self.blocks): x = block(x) + i
        for name, layer in self.table.items(): x = layer(x)
        x = self.seq(x) + self.seq[0](x) + len(self.blocks)
        for p in self.params: x = x + p
        if self.none is not None: x = self.none(x)
        return x * self.pdict["q"] + self.blocks[-1].linear.bias

class Wrapper(nn.Module):
    def __init__(self, k, inner):
        super().__init__()
        self.k, self.inner = k, inner
        self.register_buffer("shift", torch.full((3,), float(k)))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
    def forward(self, x): return self.inner(x) * self.k + self.shift + self.hidden

holder = nn.Module()
model = Nest().eval()
block = Block().eval()
counting = Counting().eval()
train = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
hooked = nn.Linear(3, 3)
hooked.register_forward_hook(lambda m, a, out: out * 2)
hooked.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
weighted = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
embed = nn.Embedding(10, 3)
mha = nn.MultiheadAttention(4, 2, batch_first=True).eval()
lstm = nn.LSTM(3, 4, batch_first=True)
encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
stacked = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
plain = torch.ones(3)
leaf = torch.full((3,), 2.0, requires_grad=True)

attended = torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])(torch.nn.functional.scaled_dot_product_attention)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k=1):
        ctx.save_for_backward(a)
        ctx.k = k
        return a * a * k
    @staticmethod
    def backward(ctx, g):
        a, = ctx.saved_tensors
        return 3 * a * g * ctx.k, None

class Fn:
    def __torch_function__(self, func, types, args=(), kwargs=None): return 5
"""

ONE_GRAPH = table('''
# nested modules
return model(x)
# module keyword arguments
return block(x, twice=True)
# module state changes
return counting(x), counting.steps, counting.seen.clone()
# module attributes and iteration
return x + len(list(model.named_parameters())) + len(list(model.children())) + sum(p.sum() for p in block.parameters()) + isinstance(model.blocks[0], Block) + model.training + len(model.state_dict())
# module in training
return block.drop(x) if block.drop.training else block.linear(x)
# hooks on modules
return hooked(x)
# convolutional
return conv(x.view(1, 1, 2, 3).repeat(2, 3, 2, 2))
# batch norm in training
return train(x), train[1].running_mean.clone()
# parametrization
return weighted(x)
# embedding and one hot
i = torch.tensor([1, 2]); return embed(i) + F.one_hot(i, 3)
# attention module
q = torch.cat([x, y], -1)[:, :4].unsqueeze(0); return mha(q, q, q)[0]
# transformer layer
q = torch.cat([x, y], -1)[:, :4].unsqueeze(0); return encoder(q)
# tensor attributes
return x + x.shape[0] + x.ndim + x.size(-1) + x.numel() + x.stride(0) + x.is_contiguous() + x.is_floating_point() + x.element_size() + x.dim() + x.requires_grad + (x.dtype == torch.float32) + (x.device.type == "cpu") + x.is_cuda + (x.layout == torch.strided) + (x.grad is None) + x.T.shape[0] + x.mT.size()[1] + x.nelement() + x.storage_offset() + x.is_leaf
# factories
return x + torch.zeros(2, 3) + torch.ones_like(x) + torch.full((3,), 2.0) + torch.arange(3) + torch.eye(3)[:2] + torch.tensor([1.0, 2.0, 3.0]) + torch.linspace(0, 1, 3) + x.new_zeros(3) + torch.empty(3).fill_(1) + torch.tensor(3, dtype=x.dtype, device=x.device) + torch.as_tensor(2.0)
# random
return x + torch.rand(2, 3) + torch.randn_like(x) + F.dropout(y, 0.5) + torch.bernoulli(torch.full_like(x, 0.5)) + torch.randint(0, 5, (3,)) + torch.randperm(3)
# dtype changes
return x.double().float() + x.to(torch.bfloat16).to(y) + x.type_as(y) + x.int() + x.bool() + x.half().float() + x.to("cpu") + x.long()
# indexing
m = torch.tensor([True, False]); i = torch.tensor([1, 0]); t = x.clone(); t[0] = 1; t[:, 1] += 2; t[..., -1] = y[..., 0]; t[i] = y * 2; return t[None, :, ::2], x[i], x[:, [0, 2]], x[0, 1], x[1:], x[..., 0], torch.where(m[:, None], x, y)
# joining and splitting
a, b = x.chunk(2); c, d = torch.split(y, [1, 1]); e = torch.unbind(x); return torch.cat([a, c]), torch.stack(e), torch.hstack([x, y]), d
# shapes
return x.view(3, 2).permute(1, 0).reshape(-1).unsqueeze(0).squeeze(0).expand(2, 6).contiguous().flatten().view(2, -1).transpose(0, 1), torch.einsum("ij,kj->ik", x, y), x.view(x.size(0), -1).size()
# reductions
return x.sum(), x.mean(-1, keepdim=True), x.max(1).values, x.argmax(-1), x.var(0), x.norm(), torch.logsumexp(x, 1), x.cumsum(0), x.std(), x.min(), torch.topk(x, 2).indices, x.sort(-1)[0], x.any(), x.prod()
# functional
return F.softmax(x, -1) + F.gelu(x) + F.silu(y) + F.relu(x) + F.layer_norm(x, (3,)) + F.normalize(y) + F.leaky_relu(x) + F.pad(x, (1, 1))[:, 1:-1] + F.linear(x, torch.eye(3)) + F.softplus(x) + F.log_softmax(x, 1) + F.mse_loss(x, y) + F.cross_entropy(x, torch.tensor([0, 2]))
# in place and out
t = x.clone(); t.add_(1).mul_(2).clamp_(0, 3); t.copy_(y); t.zero_().fill_(2); torch.add(x, y, out=t); x.mul_(2); return t
# views mutated
t = x.clone(); v = t[0]; v += 1; t.view(-1)[2] = 9; w = t.t(); w.mul_(2); return t, v, w
# no_grad and enable_grad
with torch.no_grad():
    a = leaf * 2
    with torch.enable_grad(): b = leaf * 3
torch.set_grad_enabled(False); c = leaf * 4; torch.set_grad_enabled(True)
return a, b, c, torch.is_grad_enabled()
# grad mode as decorator
@torch.no_grad()
def g(v): return v * 2
return g(leaf), leaf * 2
# inference mode
with torch.inference_mode(): a = x * 2
return x + 1
# autocast
with torch.autocast("cpu", dtype=torch.bfloat16): a = block.linear(x); b = torch.is_autocast_enabled("cpu")
return a, a.dtype, b
# detach and requires_grad
t = (leaf * x).detach(); u = t.requires_grad_(); return u * 2, t.requires_grad, leaf.data + 1
# requires_grad that changes nothing
t = leaf * x; u = t.requires_grad_(); leaf.requires_grad = True; x.requires_grad_(False); x.requires_grad = False; return u is t, u * 2, leaf.requires_grad_(True) is leaf
# scaled dot product attention
q = x.view(1, 1, 2, 3); return F.scaled_dot_product_attention(q, q, y.view(1, 1, 2, 3)), F.scaled_dot_product_attention(q, q, q, is_causal=True)
# sdpa context manager
from torch.nn.attention import sdpa_kernel, SDPBackend
q = x.view(1, 1, 2, 3)
with sdpa_kernel(SDPBackend.MATH): return F.scaled_dot_product_attention(q, q, q)
# autograd function
return Square.apply(x, 2)
# checkpoint
from torch.utils.checkpoint import checkpoint
return checkpoint(block, x, use_reentrant=False)
# vmap
return torch.vmap(lambda a, b: (a * b).sum())(x, y)
# func grad
return torch.func.grad(lambda a: (a ** 2).sum())(x)
# func jvp and jacrev
return torch.func.jvp(torch.sin, (x,), (y,)), torch.func.jacrev(torch.cos)(x[0])
# functional call
return torch.func.functional_call(block, {"linear.weight": torch.eye(3)}, (x,))
# is compiling is constant
k = torch.compiler.is_compiling; return x + 1
# torch constants
return x + math.pi * torch.pi + torch.finfo(x.dtype).eps + torch.iinfo(torch.int8).max, torch.float16, torch.Size([1, 2]), torch.get_default_dtype(), torch.promote_types(torch.int8, torch.float16)
# size arithmetic
s = x.shape; b, *rest = s; return x.new_ones(s[:1] + (4,)), s.numel(), torch.Size((*s, 5)), s == (2, 3), list(s), b * rest[0], s[-1] // 2
# tensor as number operands
k = 2; return k * x + (1 - x) / 3 - 2 ** x + (x > k) + (k // (x + 1)) + x % k, -x, ~(x > 0), x @ y.T, k in (1, 2)
# tensor iteration
t = 0
for row in x: t = t + row
a, b = y; return t + a * b + len(x) + sum(x)
# tensor methods by name
return getattr(x, "relu")() + torch.Tensor.sin(x) + torch.ops.aten.cos(x) + x.__add__(1) + torch.sigmoid(input=x)
# deepcopied module
import copy
return copy.deepcopy
# type checks on tensors
return x + isinstance(x, torch.Tensor) + isinstance(leaf, nn.Parameter) + isinstance(block.gain, nn.Parameter) + torch.is_tensor(x) + isinstance(block, nn.Module) + torch.is_floating_point(x) + (type(block.gain) is nn.Parameter)
# assertions of torch
torch._assert(x.shape[0] == 2, "no"); torch._check(x.dim() == 2); return x + 1
# global state reads
return x + torch.is_grad_enabled() + torch.is_inference_mode_enabled() + torch.get_num_threads() * 0 + torch.backends.cuda.is_built() + torch.cuda.is_available() + torch.are_deterministic_algorithms_enabled()
# complex numbers
z = torch.view_as_complex(x[:, :2].contiguous()); return torch.view_as_real(z * z.conj()), torch.polar(x, y).abs(), z.real
# meshgrid and tril
a, b = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"); return a + b, torch.tril(x), torch.triu(torch.ones(3, 3), 1), torch.broadcast_tensors(x[0], x)[0]
# masks
m = torch.ones(2, 3, dtype=torch.bool).tril(); return x.masked_fill(m, -1.0), x.masked_fill(~m, float("-inf")), torch.finfo(x.dtype).min * m
# loss with labels
lin = block.linear(x); return F.cross_entropy(lin, torch.tensor([1, 2])), nn.CrossEntropyLoss()(lin, torch.tensor([0, 1])), F.binary_cross_entropy_with_logits(x, y)
# generic function on list of tensors
return torch.utils._pytree.tree_map(lambda t: t * 2, {"a": x, "b": [y]})
# named buffers
return [n for n, _ in block.named_buffers()], dict(block.named_children()).keys() == {"linear", "norm", "act", "drop"}, x + block.get_parameter("gain")
# apply and train
block.train(); block.eval(); block.apply(lambda m: None); return block(x), block.training
# attribute of parameter
return x + block.linear.weight.shape[0] + block.linear.in_features, block.linear.weight.dtype, block.linear.weight.requires_grad
# loss modules made inside
i = torch.tensor([0, 2]); return nn.CrossEntropyLoss()(x, i), nn.MSELoss(reduction="sum")(x, y), nn.NLLLoss(ignore_index=0)(x, i), nn.L1Loss()(x, y), nn.BCEWithLogitsLoss()(x, y), nn.KLDivLoss(reduction="batchmean")(x, y), nn.SmoothL1Loss(beta=0.5)(x, y)
# modules without parameters made inside
m = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Dropout(0.0)); m.eval(); return m(x), m, m.training, len(m), isinstance(m[0], nn.ReLU)
# own module made inside
m = Wrapper(3, nn.ReLU()); n = Wrapper(2, m); return n(x), n, n.training, [k for k, _ in n.named_modules()], list(n.state_dict())
# module made inside that shares an existing one
m = Wrapper(1, block.linear); return m(x), m.inner is block.linear, len(list(m.parameters()))
# structure of an existing module changes
holder.part = block.norm; a = holder.part(x); holder.part = None; b = holder.part; holder.extra = nn.ReLU(); c = holder.extra(x); del holder.extra; holder.gain = block.gain; return a, b, c, hasattr(holder, "extra"), [k for k, _ in holder.named_parameters()]
# sums of sizes
s = x.shape; r = s + (1,), (1,) + s, s + s, s * 2, s[1:] + s[:1]; return [type(v).__name__ for v in r], r, x.view(s[:1] + (3, 1))
# legacy tensor types
return isinstance(x, torch.FloatTensor), isinstance(x, torch.DoubleTensor), isinstance(x.long(), torch.LongTensor), isinstance(x, (int, torch.FloatTensor)), x + 1
# factorization inside of with
with torch.no_grad(): return torch.linalg.cholesky(torch.eye(2) + 0 * x[:, :2])
# leaves and outputs
a, b = torch.unbind(torch.stack([leaf, leaf])); return x + leaf.is_leaf + a.is_leaf + x.is_leaf, leaf.grad_fn, leaf.output_nr
# functools partial of torch
return functools.partial(F.linear, weight=torch.eye(3))(x) + functools.reduce(torch.add, [x, y])
''')

ANY_GRAPHS = table('''
# encoder puts zeros where the mask of padding is
with torch.no_grad(): return stacked(torch.stack([x, y]).view(1, 3, 4), src_key_padding_mask=torch.tensor([[False, False, True]]))
# factorization that may fail is tried again
a = torch.zeros(2, 2) - x[:, :2] * 0
for i in range(4):
    try: return torch.linalg.cholesky(a), i
    except torch.linalg.LinAlgError: a = a + torch.eye(2) * (i + 1)
# factorization fails in a called function
def inner(a):
    with torch.no_grad(): return a.inverse()
try: return inner(x[:, :2] * 0)
except RuntimeError as e: return type(e).__name__, x + 1
# requires_grad of what is no leaf
t = leaf * x
try: t.requires_grad = True
except RuntimeError as e: return t, str(e)[:20]
# item
k = x.sum().item(); return y * k
# tolist
return [v * y for v in x[0].tolist()]
# nonzero and masks
return x[x > 0.5], torch.nonzero(x > 0.5), torch.unique(torch.tensor([1, 1, 2])), torch.masked_select(x, x > 0.3)
# data dependent loop
n = 0
while x.sum() > 0.5: x = x * 0.5; n += 1
return x, n
# branch on any
if (x > 2).any(): return x
return y * 2
# tensor in python containers tests
return x + (1 if x.sum() in [1, 2] else 3)
# int of tensor
return x[: int(y.argmax()) % 2 + 1] * 2, float(x.sum()) > 0, bool(x.any())
# print tensor
t = x + 1; s = str(t.shape) + repr(t.dtype); print(t.sum() > 0); return t * 2, s
# lazy module
m = nn.LazyLinear(3); return m(x).shape
# lstm
return lstm(x.unsqueeze(0))[0].shape
# module made inside
torch.manual_seed(0); m = nn.Linear(3, 3); return m(x)
# manual seed
torch.manual_seed(3); return x + torch.rand(3)
# generator argument
g = torch.Generator().manual_seed(3); return x + torch.rand(3, generator=g)
# tensor hooks
t = leaf * 2; seen = []; t.register_hook(lambda g: seen.append(1)); t.sum().backward(); return seen, leaf.grad is not None
# backward inside
w = torch.ones(3, requires_grad=True); (w * x).sum().backward(); return w.grad + 1
# autograd grad inside
w = torch.ones(3, requires_grad=True); return torch.autograd.grad((w * w * x).sum(), w)[0] * 2
# retain grad and grad_fn
t = leaf * 2; return t.grad_fn is not None, t * 2
# subclass
class Sub(torch.Tensor): pass
s = x.as_subclass(Sub); return (s + 1).as_subclass(torch.Tensor)
# torch function class
return torch.add(Fn(), x)
# save and load
import io
b = io.BytesIO(); torch.save(x, b); b.seek(0); return torch.load(b) + 1
# numpy round trip
return torch.from_numpy(x.numpy() * 2) + 1
# data pointer
return x.data_ptr() == x.view(-1).data_ptr(), x * 2
# set data
w = torch.ones(3); w.data = y[0]; return w + x
# optimizer step
p = torch.ones(3, requires_grad=True); o = torch.optim.SGD([p], lr=0.1); (p * x).sum().backward(); o.step(); o.zero_grad(); return p.detach()
# sparse
return (x > 0.5).float().to_sparse().to_dense() + y
# custom op
lib = torch.library.custom_op("feature_test::twice", lambda a: a * 2, mutates_args=(), schema="(Tensor a) -> Tensor") if not hasattr(torch.ops.feature_test, "twice") else torch.ops.feature_test.twice
return lib(x) + 1
# profiler range
with torch.profiler.record_function("name"): t = x + 1
return t * 2
# deterministic switch
torch.use_deterministic_algorithms(True); torch.use_deterministic_algorithms(False); return x + 1
# jit scripted function
return torch.jit.script(lambda_fn)(x) if "lambda_fn" in globals() else x + 1
# resize and set
t = x.clone(); t.resize_(3, 2); return t + 1
# error in module
return nn.Linear(4, 2)(x)
# dtype error
return x[x]
''')

BACKWARD = table('''
# linear model
return model(x)
# block with buffers
return block(x) * leaf
# sdpa context manager that decorates
q = (x * leaf).view(1, 1, 2, 3); return attended(q, q, q) + attended(q, q, q * 2)
# autograd function
return Square.apply(leaf * x, 2)
# detach cuts
return (leaf * x).detach() * leaf + leaf.data
# no_grad inside
with torch.no_grad(): a = leaf * 2
return a * leaf * x
# in place on intermediate
t = leaf * x; t = t * 1; t.mul_(2); t[0] = 5; return t * leaf
# checkpointed
from torch.utils.checkpoint import checkpoint
return checkpoint(block, x * leaf, use_reentrant=False)
# break between
t = model(x * leaf); dynamo.graph_break(); return t * leaf
# branch on data
t = model(x)
if t.sum() > 0: t = t * leaf
else: t = t - leaf
return t
''')


# Rows that should be one graph and still break; their results are compared all the same.
BROKEN_TODAY = {
    "detach and requires_grad",
}


test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP, BROKEN_TODAY)


@pytest.mark.parametrize("name,text", BACKWARD, ids=[n for n, _ in BACKWARD])
def test_backward(name: str, text: str) -> None:
    check(text, SETUP, graphs=None, backward=True)
