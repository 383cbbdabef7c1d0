"""Copies, state dicts, modules made in the function, enumerations, each used once between operations on tensors: which stay in
one graph, and where the others break it."""

from __future__ import annotations

import copy

import pytest
import torch

import dynamo
from tests.features.harness import check, codes_of, table

SETUP = """
import copy, enum, dataclasses, collections, types
from torch import nn
class Point:
    def __init__(self, a, b): self.a, self.b = a, b
class Slotted:
    __slots__ = ("a", "b")
    def __init__(self, a, b): self.a, self.b = a, b
class SlottedToo(Slotted):
    def __init__(self, a, b, c): super().__init__(a, b); self.c = c
class Deep:
    def __init__(self, a): self.a = a
    def __deepcopy__(self, memo):
        made = Deep(copy.deepcopy(self.a, memo)); memo[id(self)] = made; return made
    def __copy__(self): return Deep(self.a)
class Reduced:
    def __init__(self, a): self.a = a
    def __reduce__(self): return Reduced, (self.a,)
class ReducedEx:
    def __init__(self, a): self.a = a
    def __reduce_ex__(self, p): return ReducedEx, (self.a,)
class Stateful:
    def __init__(self, a): self.a = a; self.cache = {}
    def __getstate__(self): return {"a": self.a}
    def __setstate__(self, s): self.a = s["a"]; self.cache = {"new": 1}
@dataclasses.dataclass
class Data:
    a: torch.Tensor
    n: int = 0
@dataclasses.dataclass(slots=True)
class SlotData:
    a: torch.Tensor
    n: int = 0
@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int = 0
    t: tuple = ()
@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    n: int = 0
    t: tuple = ()
class MyList(list): pass
class MyDict(dict): pass
NT = collections.namedtuple("NT", "a b")
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.lin = nn.Linear(3, 3); self.n = 3
    def forward(self, x): return self.lin(x)
torch.manual_seed(0)
NET = Net(); SEQ = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)); BN = nn.BatchNorm1d(3)
PARAM = nn.Parameter(torch.ones(3)); CONFIG = {"a": [1, 2], "b": {"c": (1, 2)}}
G = Point(torch.ones(3), [1]); GS = Slotted(torch.ones(3), 2)
class Color(enum.Enum):
    RED = 1; GREEN = 2
    @classmethod
    def _missing_(cls, v):
        return cls.GREEN if v == "green" else None
class Perm(enum.Flag):
    R = enum.auto(); W = enum.auto(); X = enum.auto()
class IPerm(enum.IntFlag):
    R = 1; W = 2; X = 4
class Kind(enum.StrEnum):
    SUM = enum.auto(); MEAN = enum.auto()
class Level(enum.IntEnum):
    LOW = 1; HIGH = 10
class SKind(str, enum.Enum):
    A = "a"; B = "b"
class Planet(enum.Enum):
    E = (1.0, 2.0); M = (3.0, 4.0)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius
    @property
    def ratio(self): return self.mass / self.radius
class Op(enum.Enum):
    ADD = enum.member(torch.add); MUL = enum.member(torch.mul)
    def __call__(self, *a): return self.value(*a)
PROXY = types.MappingProxyType({"a": 2, "b": torch.ones(3)})
"""

ONE_GRAPH = table(r'''
# deepcopy tensor
z = copy.deepcopy(x); z.add_(1); return z + x
# deepcopy tensor nonleaf
y = x * 2; z = copy.deepcopy(y); z.add_(1); return z + y
# deepcopy list
xs = [x, x, x + 1]; ys = copy.deepcopy(xs); ys[0].add_(1); return ys[0] is ys[1], ys[1] + x
# deepcopy set
s = {1, 2}; d = copy.deepcopy({"s": s, "t": [s]}); d["s"].add(3); return d["s"] is d["t"][0], x + len(d["t"][0]) + len(s)
# deepcopy dict
d = {"a": x, "b": [x]}; e = copy.deepcopy(d); e["a"].mul_(2); return e["b"][0] is e["a"], e["a"] + x
# copy dict
d = {"a": x * 2}; e = copy.copy(d); e["b"] = 1; return e["a"] + 1, len(d)
# copy list
d = [x * 2]; e = copy.copy(d); e.append(1); return e[0] + 1, len(d)
# copy set
d = {1, 2}; e = copy.copy(d); e.add(3); return x * len(e) + 1, len(d)
# copy point
p = Point(x * 2, [1]); q = copy.copy(p); q.b.append(2); q.a = q.a + 1; return q.a + p.a, p.b
# deepcopy point
p = Point(x, [1]); q = copy.deepcopy(p); q.b.append(2); return q.a + p.a, p.b
# deepcopy global point
q = copy.deepcopy(G); q.b.append(2); q.a.add_(1); return x * 2 + q.a, len(G.b)
# copy global point
q = copy.copy(G); q.c = 3; return x * 2 + q.a, hasattr(G, "c")
# copy slots
p = Slotted(x * 2, [1]); q = copy.copy(p); q.b = 3; return q.a + 1, p.b, q.b
# deepcopy slots
p = Slotted(x, [1]); q = copy.deepcopy(p); q.b.append(3); return q.a + 1, p.b, q.b
# deepcopy slots too
p = SlottedToo(x, [1], 5); q = copy.deepcopy(p); q.b.append(3); return q.a + q.c, p.b, q.b
# copy global slots
q = copy.copy(GS); return x * 2 + q.a * q.b
# deepcopy own
p = Deep(x); q = copy.deepcopy([p, p]); return q[0] is q[1], q[0].a + x
# copy own
p = Deep(x * 2); return copy.copy(p).a + 1
# copy reduce
return copy.copy(Reduced(x * 2)).a + 1
# deepcopy reduce
return copy.deepcopy(Reduced(x)).a + 1
# deepcopy reduce ex
return copy.deepcopy(ReducedEx(x)).a + 1
# deepcopy state
q = copy.deepcopy(Stateful(x)); return q.a + 1, q.cache
# copy state
q = copy.copy(Stateful(x * 2)); return q.a + 1, q.cache
# deepcopy dataclass
q = copy.deepcopy(Data(x, 3)); return q.a + q.n
# copy dataclass
q = copy.copy(Data(x * 2, 3)); return q.a + q.n
# copy slot dataclass
q = copy.copy(SlotData(x * 2, 3)); return q.a + q.n
# deepcopy slot dataclass
q = copy.deepcopy(SlotData(x, 3)); return q.a + q.n
# copy frozen
q = copy.deepcopy(Frozen(3, (1, 2))); return x * q.n + q.t[0]
# copy frozen slots
q = copy.deepcopy(FrozenSlots(3, (1, 2))); return x * q.n + q.t[0]
# deepcopy mylist
q = copy.deepcopy(MyList([x, x])); return type(q).__name__, q[0] + 1, q[0] is q[1]
# deepcopy mydict
q = copy.deepcopy(MyDict(a=x)); return type(q).__name__, q["a"] + 1
# deepcopy namedtuple
q = copy.deepcopy(NT(x, [2])); return type(q).__name__, q.a + 1
# deepcopy tuple same
t = (1, (2, 3)); return copy.deepcopy(t) is t, x * 2 + 1
# deepcopy config
c = copy.deepcopy(CONFIG); c["a"].append(3); return x * len(c["a"]) + 1, len(CONFIG["a"])
# deepcopy memo
m = {id(x): x}; y = copy.deepcopy([x], m); return y[0] is x, x * 2 + 1
# deepcopy cycle
a = [x]; a.append(a); b = copy.deepcopy(a); return b[1] is b, b[0] + 1
# deepcopy counter
return copy.deepcopy(collections.Counter("aab"))["a"] * x + 1
# deepcopy defaultdict
d = collections.defaultdict(list); d["a"].append(x); e = copy.deepcopy(d); e["b"].append(1); return e["a"][0] + 1, len(d)
# deepcopy ordered
d = collections.OrderedDict(a=x); return copy.deepcopy(d)["a"] + 1
# deepcopy param
p = copy.deepcopy(PARAM); return x * p + 1, isinstance(p, nn.Parameter), p.requires_grad
# deepcopy module
m = copy.deepcopy(NET); return m(x) + 1
# deepcopy module write
m = copy.deepcopy(NET)
with torch.no_grad(): m.lin.weight.mul_(2)
return m(x) + NET(x)
# deepcopy sequential
m = copy.deepcopy(SEQ); return m(x) + 1
# deepcopy bn
m = copy.deepcopy(BN); m.train(); return m(x) + 1, BN.running_mean + 0
# copy module
m = copy.copy(NET); m.n = 4; return m(x) + m.n + NET.n
# deepcopy function
f = copy.deepcopy(deepcopy_param); return x * 2 + (f is deepcopy_param)
# state dict
s = NET.state_dict(); return x @ s["lin.weight"] + 1, list(s)
# state dict clone
s = {k: v.clone() for k, v in NET.state_dict().items()}; return x @ s["lin.weight"] + 1
# state dict prefix
s = NET.state_dict(prefix="m."); return x @ s["m.lin.weight"] + 1, s._metadata
# state dict bn
s = BN.state_dict(); return x * s["running_var"] + 1
# load same
NET.load_state_dict(NET.state_dict()); return NET(x) + 1
# load copy
s = {k: v * 1 for k, v in NET.state_dict().items()}; r = NET.load_state_dict(s); return NET(x) + 1, list(r.missing_keys)
# named params
d = {n: p.detach().clone() for n, p in NET.named_parameters()}; return x @ d["lin.weight"] + 1
# params vector
v = nn.utils.parameters_to_vector(NET.parameters()); return x * v.sum() + 1
# clip norm
for p in NET.parameters(): p.grad = torch.ones_like(p) * 3
n = nn.utils.clip_grad_norm_(NET.parameters(), 1.0); return x * n + 1, NET.lin.weight.grad + 0
# clip value
for p in NET.parameters(): p.grad = torch.ones_like(p) * 3
nn.utils.clip_grad_value_(NET.parameters(), 1.0); return x + 1, NET.lin.weight.grad + 0
# get total norm
return x * nn.utils.get_total_norm([x, x * 2]) + 1
# linear inside
torch.manual_seed(0); m = nn.Linear(3, 3).to(x); return m(x) + 1
# linear inside dtype
m = nn.Linear(3, 3, bias=False, dtype=x.dtype, device=x.device); return m(x) * 0 + 1
# sequential inside
m = nn.Sequential(nn.ReLU(), nn.Flatten()); return m(x) + 1
# layernorm inside
m = nn.LayerNorm(3); return m(x) + 1
# layernorm plain inside
m = nn.LayerNorm(3, elementwise_affine=False); return m(x) + 1
# loss inside
return nn.MSELoss()(x, x * 2) + 1
# conv inside
return nn.Conv1d(2, 2, 1)(x) * 0 + 1
# param inside
p = nn.Parameter(x.detach() * 2); return p * x + 1
# module inside
torch.manual_seed(1); m = Net(); return m(x) + 1
# enum value
return x * Color(1).value + 1, Color["RED"].name
# enum iter
y = x * 2; return y + sum(c.value for c in Color), [c.name for c in Color]
# enum in
y = x * 2; return y + (Color.RED in Color), len(Color)
# enum keys
d = {Color.RED: x, Color.GREEN: x + 1}; return d[Color.GREEN] * 2, d[Color(1)]
# enum members
return x * len(Color.__members__) + 1, list(Color.__members__)
# flag or
p = Perm.R | Perm.W; y = x * 2; return y + p.value if Perm.R in p else y, p
# flag ops
p = (Perm.R | Perm.W) & ~Perm.R; return x * p.value + 1, p ^ Perm.X, bool(p & Perm.X)
# flag iter
p = Perm.R | Perm.X; return x * len(list(p)) + 1, [q.name for q in p], p.name, repr(p)
# intflag ops
p = IPerm.R | 4; return x * int(p) + 1, p, IPerm(7), (p & 1), ~p
# intflag inv
return x * (~IPerm.R).value + 1, IPerm.R + 1
# strenum
y = x.sum(0) if Kind("sum") == "sum" else x; return y + 1, Kind.MEAN.upper(), f"{Kind.SUM}"
# intenum
return x * Level.HIGH + 1, Level.LOW < Level.HIGH, Level(10), Level.LOW + 1, f"{Level.LOW}"
# strmixin
return x + len(SKind.A) + 1, SKind("b"), SKind.A == "a", SKind.A.value
# enum init
return x * Planet.E.ratio + Planet.M.mass
# enum call
return Op.ADD(x, x) * 2
# enum match
match Color(1):
    case Color.RED: return x * 2 + 1
    case _: return x
# enum repr
return x * 2 + 1, repr(Color.RED), str(Color.RED), hash(Color.RED) == hash("RED")
# enum sorted
return x * 2 + 1, sorted(Level, reverse=True), max(Level)
# enum getattr
return x * getattr(Color, "RED").value + 1, hasattr(Color, "BLUE")
# enum isinstance
return x * isinstance(Color.RED, Color) + 1, isinstance(Level.LOW, int)
# proxy outside
return x * PROXY["a"] + PROXY["b"], len(PROXY), "a" in PROXY, list(PROXY)
# proxy inside
p = types.MappingProxyType({"a": x}); return p["a"] + 1, dict(p)["a"]
# proxy get
return x * PROXY.get("z", 3) + 1, [k for k, v in PROXY.items()], {**PROXY}["a"]
''')

# The codes of the breaks behind the name.
BREAKING = table(r'''
# copy tensor: call_of_unknown_function
y = x * 2; z = copy.copy(y); return z + 1
# deepcopy view: call_of_unknown_function
z = copy.deepcopy(x[:, 1]); z.add_(1); return z + x[:, 1], z.stride()
# deepcopy generator: call_of_unknown_function
g = torch.Generator(); return x + 1
# vector params: attribute_store_unknown escaping_generator opaque_iterator
v = nn.utils.parameters_to_vector(NET.parameters()).detach() * 1; nn.utils.vector_to_parameters(v, NET.parameters()); return NET(x) + 1
# enum reversed: iteration_unknown opaque_iterator
return x * 2 + 1, list(reversed(Color)), Color.RED is Color(1)
# deepcopy deque: call_of_unknown_function
return copy.deepcopy(collections.deque([x]))[0] + 1
# deepcopy namespace: call_of_unknown_function
n = types.SimpleNamespace(a=x, b=[1]); return copy.deepcopy(n).a + 1
# copy namespace: call_of_unknown_function
n = types.SimpleNamespace(a=x, b=[1]); return copy.copy(n).a + 1
# enum missing: call_of_unknown_function
y = x * 2; return y + Color("green").value
# enum missing fails: call_of_unknown_function
try: Color("blue")
except ValueError as e: return x * 2 + 1, str(e)
''')


@pytest.mark.parametrize("name,text", ONE_GRAPH, ids=[name for name, _ in ONE_GRAPH])
def test_one_graph(name: str, text: str) -> None:
    check(text, SETUP)


@pytest.mark.parametrize("name,text", BREAKING, ids=[name for name, _ in BREAKING])
def test_breaking(name: str, text: str) -> None:
    check(text, SETUP, graphs=None)
    assert codes_of(text, SETUP) == set(name.partition(": ")[2].split())


def copy_both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = copy.deepcopy([a, b])
    first.add_(1)
    return first, second


def test_copies_of_tensors_that_share_memory_share_it() -> None:
    compiled = dynamo.compile(copy_both, backend="eager")
    for start in (3, 1, 0):
        base = torch.arange(6.0)
        given = base[:3], base[start : start + 3]
        want, got = copy_both(*given), compiled(*given)
        assert all(map(torch.equal, want, got)), start


def test_a_deep_copy_takes_attributes_and_gradients_along() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(x).mul_(2)

    compiled = dynamo.compile(f, backend="eager")
    plain, named, learned = torch.ones(2), torch.ones(2), torch.ones(2)
    named.note = [1]  # type: ignore[attr-defined]
    learned.grad = torch.full((2,), 3.0)
    assert not hasattr(compiled(plain), "note")
    made = compiled(named)
    assert made.note == [1] and made.note is not named.note  # type: ignore[attr-defined]
    made = compiled(learned)
    assert torch.equal(made.grad, learned.grad) and made.grad is not learned.grad
    assert compiled(plain).grad is None


def test_a_deep_copy_counts_its_writes_as_in_eager() -> None:
    compiled = dynamo.compile(lambda x: copy.deepcopy(x), backend="eager")
    assert compiled(torch.ones(2))._version == copy.deepcopy(torch.ones(2))._version == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_module_made_in_the_function_is_trained(backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.nn.Module, torch.Tensor]:
        made = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
        return made, made(x)

    x = torch.rand(4, 3)
    torch.manual_seed(1)
    plain, want = f(x)
    dynamo.reset()
    torch.manual_seed(1)
    made, got = dynamo.compile(f, backend=backend, fullgraph=True)(x)
    want.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(made.parameters(), plain.parameters(), strict=True):
        assert type(mine) is torch.nn.Parameter and mine.is_leaf
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_parameter_made_in_the_function_shares_memory() -> None:
    def f(x: torch.Tensor) -> tuple[torch.nn.Parameter, torch.Tensor]:
        made = torch.nn.Parameter(x, requires_grad=False)
        made.mul_(2)
        return made, x + 1

    for backend in ("eager", "aot_eager"):
        x = torch.ones(3)
        made, got = dynamo.compile(f, backend=backend, fullgraph=True)(x)
        assert made.data_ptr() == x.data_ptr() and made is not x
        assert torch.equal(x, torch.full((3,), 2.0)) and torch.equal(got, x + 1)


def test_a_parameter_made_over_a_break_is_one() -> None:
    def f(x: torch.Tensor) -> tuple[bool, torch.Tensor]:
        made = torch.nn.Parameter(x * 2)
        dynamo.graph_break()
        return isinstance(made, torch.nn.Parameter) and made.is_leaf, (made * 3).sum()

    is_one, total = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert is_one and total.requires_grad
