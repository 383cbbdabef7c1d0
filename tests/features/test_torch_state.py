"""Torch's state and modules that change: generators, modes, parametrizations, buffers.

A row is `# name | number of graphs of two calls and what they break into`.
"""

from __future__ import annotations

from tests.features.programs import COMMON, make_tests, rows_of

SETUP = COMMON + """
import torch.nn.utils.parametrize as P
gen = torch.Generator().manual_seed(5)
class Sym(nn.Module):
    def forward(self, m): return m.triu() + m.triu(1).T
parametrized = nn.Linear(3, 3); P.register_parametrization(parametrized, "weight", Sym())
weighted = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    old_weighted = nn.utils.weight_norm(nn.Linear(3, 3))
    old_spectral = nn.utils.spectral_norm(nn.Linear(3, 3))
spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
import torch.nn.utils.prune
pruned = nn.utils.prune.l1_unstructured(nn.Linear(3, 3), "weight", amount=0.3)
bn = nn.BatchNorm1d(3)
class Wrap(nn.Module):
    def __init__(self, module):
        super().__init__(); self.module = module
    def forward(self, *args, **kwargs): return self.module(*args, **kwargs)
    def __getattr__(self, name):
        try: return super().__getattr__(name)
        except AttributeError: return getattr(self.module, name)
wrapped = Wrap(nn.Linear(3, 3))
dp = nn.DataParallel(nn.Linear(3, 3))
import copy, torch.optim.swa_utils
averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(3, 3))
ema = copy.deepcopy(lin).requires_grad_(False)
cumulative = nn.BatchNorm1d(3, momentum=None)
counter_mod = nn.Module(); counter_mod.register_buffer("n", torch.zeros(()))
"""

ROWS = rows_of('''
# numpy: read and back | 2
a = x.detach().numpy(); return torch.from_numpy(a * 2) + y
# numpy: maximum of an array | 3
a = y.numpy(); return x * float(np.max(a)), np.max(a), a.shape
# numpy: from_numpy shares memory | 1
a = np.ones(3, dtype=np.float32); t = torch.from_numpy(a); t.add_(1); return t * x, a
# numpy: global array argument | 4
return x * torch.from_numpy(table) + torch.as_tensor(table[0]) + torch.tensor(table)
# numpy: array mutated | 1
a = y.numpy(); a[0] = 7; return y * x, a
# numpy: constants and functions | 1
return x * np.pi + np.float32(2) + np.sqrt(2.0) + np.prod((2, 3)) + np.log(4)
# numpy: numpy function on a tensor | 1
return np.max(y.numpy()), x + 1, np.asarray([1, 2, 3]).tolist()
# numpy: tensor to array to float | 3
return x * np.array([1.0, 2.0, 3.0]).max() + np.arange(3)[1].item()
# state: fork_rng | 1
with torch.random.fork_rng(devices=[]): a = torch.rand(3)
return a * x, torch.rand(3)
# state: fork_rng with seed | 2
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(4); a = torch.rand(3)
return a * x, torch.rand(3)
# state: generator argument random | 1
g = torch.Generator(); g.manual_seed(3); return x * torch.rand(3, generator=g), torch.randn(2, generator=g)
# state: generator from outside random | 2
return x * torch.rand(3, generator=gen) + torch.randint(0, 5, (3,), generator=gen), gen.initial_seed()
# state: bernoulli with generator random | 2
return x * torch.bernoulli(torch.full((2, 3), 0.5), generator=gen), torch.empty(3).normal_(generator=gen)
# state: get_rng_state random | 1
s = torch.get_rng_state(); a = torch.rand(3); torch.set_rng_state(s); return x * a, torch.rand(3)
# state: default dtype | 1
torch.set_default_dtype(torch.float64)
try: a = torch.ones(3) * 2
finally: torch.set_default_dtype(torch.float32)
return a * x, a.dtype
# state: default dtype left changed | 1
def f(x, y):
    old = torch.get_default_dtype(); torch.set_default_dtype(torch.float64); a = torch.rand(2).dtype; torch.set_default_dtype(old); return x * 2, a
# state: default device | 3
torch.set_default_device("meta"); a = torch.ones(3); torch.set_default_device(None); return x * 2, a.device, torch.ones(1).device
# state: device context | 1
with torch.device("meta"): a = torch.ones(3)
return x * 2, a.device, torch.ones(1) * x
# state: device context cpu | 1
with torch.device("cpu"): a = torch.arange(3)
return a * x
# state: get_default_device | 1
return x * 2, torch.get_default_device()
# state: float32 matmul precision | 1
p = torch.get_float32_matmul_precision(); torch.set_float32_matmul_precision("high"); t = x @ y.T; torch.set_float32_matmul_precision(p); return t
# state: autocast nested | 1
with torch.autocast("cpu", dtype=torch.bfloat16):
    a = lin(x)
    with torch.autocast("cpu", enabled=False): b = lin(a.float())
    c = x @ y.T
return a.float(), b, c.float(), a.dtype, b.dtype
# state: autocast with parameter cast cached | 1
with torch.autocast("cpu", dtype=torch.bfloat16): a = lin(x); b = lin(x + 1)
return (a + b).float()
# state: autocast float16 | 1
with torch.autocast("cpu", dtype=torch.float16): a = x @ y.T
return a.float()
# state: autocast decorator | 1
@torch.autocast("cpu", dtype=torch.bfloat16)
def g(a): return lin(a)
return g(x).float()
# state: autocast around a break | 2
with torch.autocast("cpu", dtype=torch.bfloat16):
    a = lin(x); dynamo.graph_break(); b = lin(x)
return a.float() + b.float()
# state: sdpa_kernel list | 1
from torch.nn.attention import sdpa_kernel, SDPBackend
q = x.view(1, 1, 2, 3)
with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]): t = F.scaled_dot_product_attention(q, q, q)
return t
# state: inference mode around | 1
with torch.inference_mode(): a = y * 2
return x * 2, a.is_inference()
# state: set_grad_enabled context | 1
with torch.set_grad_enabled(False): a = x * 2
with torch.set_grad_enabled(True): b = x * 3
return a, b
# state: no_grad left by exception | 1
try:
    with torch.no_grad():
        a = x * 2; raise ValueError(1)
except ValueError: b = x * 2
return a, b, torch.is_grad_enabled()
# util: parametrize | 1
return parametrized(x)
# util: parametrize cached | 5
with P.cached(): a = parametrized(x) + parametrized(y)
return a
# util: parametrize weight read | 1
return parametrized.weight * x[0], parametrized.parametrizations.weight.original.shape
# util: parametrize registered inside | 4
m = nn.Linear(3, 3); P.register_parametrization(m, "weight", Sym()); return m.weight.shape, x * 2
# util: weight norm new | 1
return weighted(x)
# util: weight norm old | 1
return old_weighted(x)
# util: spectral norm training | 1
return spectral(x)
# util: spectral norm eval | 1
spectral.eval(); return spectral(x)
# util: spectral norm old training | 1
return old_spectral(x)
# util: orthogonal | 1
return orthogonal(x)
# util: pruned | 1
return pruned(x)
# util: functional_call | 1
return torch.func.functional_call(lin, {"weight": y[:, :3].T @ y, "bias": w}, (x,))
# util: functional_call with buffers | 1
b = {"running_mean": torch.zeros(3), "running_var": torch.ones(3), "num_batches_tracked": torch.tensor(0)}
return torch.func.functional_call(bn, (dict(bn.named_parameters()), b), (x,)), b["running_mean"], bn.running_mean
# util: stateless | 2
return torch.nn.utils.stateless._reparametrize_module and torch.nn.utils.stateless.functional_call(lin, {"weight": torch.eye(3)}, (x,))
# util: parameters to vector | 1
v = nn.utils.parameters_to_vector(lin.parameters()); return v * 2, x * 2
# util: vector to parameters | 4
v = nn.utils.parameters_to_vector(lin.parameters()).detach() * 0.5; nn.utils.vector_to_parameters(v, lin.parameters()); return lin(x)
# util: clip grad value | 3
torch.nn.utils.clip_grad_value_(lin.parameters(), 0.1); return lin(x)
# util: clip grad norm | 2
n = torch.nn.utils.clip_grad_norm_(lin.parameters(), 0.1); return lin(x), n
# util: pad_sequence | 1
return nn.utils.rnn.pad_sequence([x[0], x[1, :2]])
# util: data parallel like | 1
return Wrap(lin)(x), wrapped(x), wrapped.module.weight.shape, wrapped.weight.shape
# util: data parallel | 1
return dp(x)
# util: swa averaged | 1
return averaged(x), averaged.n_averaged
# util: ema update | 1
with torch.no_grad():
    for a, b in zip(ema.parameters(), lin.parameters()): a.lerp_(b, 0.5)
return ema(x) + lin(x)
# util: ema by foreach | 1
with torch.no_grad(): torch._foreach_lerp_(list(ema.parameters()), list(lin.parameters()), 0.5)
return ema(x) + lin(x)
# util: batch norm with momentum none | 4
return cumulative(x), cumulative.running_mean.clone(), int(cumulative.num_batches_tracked)
# util: batch norm training | 1
return bn(x), bn.running_var.clone()
# util: batch norm eval | 1
bn.eval(); return bn(x)
# util: sync of buffers | 1
counter_mod.n += 1; counter_mod.n.add_(x.sum().detach()); return x * counter_mod.n
# util: buffer replaced | 1
counter_mod.n = counter_mod.n * 2 + 1; return x * counter_mod.n
# util: parameter replaced | 2
lin.bias = nn.Parameter(torch.zeros(3)); return lin(x)
# util: parameter data swapped | 2
lin.bias.data = torch.ones(3); return lin(x)
# util: parameter data copied | 1
lin.bias.data.copy_(y[0]); return lin(x)
# util: parameter data multiplied | 2
lin.weight.data *= 0.5; return lin(x)
# util: requires_grad frozen | 1
for p in lin.parameters(): p.requires_grad_(False)
r = lin(x)
for p in lin.parameters(): p.requires_grad_(True)
return r
# util: requires_grad attribute | 1
lin.bias.requires_grad = False; r = lin(x); lin.bias.requires_grad = True; return r
# util: module requires_grad_ | 1
lin.requires_grad_(False); r = lin(x); lin.requires_grad_(True); return r
# util: new parameter inside | 2
p = nn.Parameter(torch.ones(3)); return x * p, p
# util: new parameter from input | 3
p = nn.Parameter(y[0]); q = nn.Parameter(y[1], requires_grad=False); return x * p + q, p.requires_grad, isinstance(p, nn.Parameter)
# util: state dict round trip | 1
sd = {k: v.clone() for k, v in lin.state_dict().items()}; lin.load_state_dict(sd); return lin(x)
# util: module half inside | 1
m = nn.ReLU().to(torch.float64); return m(x)
''')

# Rows that run on the default backend too.
COMPILED = [
    "state: no_grad left by exception",
    "util: spectral norm training",
    "util: functional_call with buffers",
    "util: sync of buffers",
    "util: ema by foreach",
]


test_captured, test_compiled = make_tests(ROWS, SETUP, COMPILED)
