"""What programs note on classes and on tensors: flags and counters of a class, attributes of plain
tensors and parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import dynamo
from tests.features.harness import codes_of, make_tests, table

SETUP = r"""
import abc, contextlib, copy, enum
class Flag:
    _state = None
    n = 0
    def __enter__(self):
        self.previous = self.__class__._state
        self.__class__.set_state(True)
    def __exit__(self, *error): self.__class__.set_state(self.previous)
    @classmethod
    def set_state(cls, state): cls._state = state
    @classmethod
    def on(cls): return cls._state is True
    def method(self): return 1
class Lazily(Flag): pass
class Strict(Lazily):
    def seen(self): return super().n
class Abstract(abc.ABC): count = 0
class Colour(enum.Enum): RED = 1
class Watched(type):
    def __setattr__(cls, name, value): super().__setattr__(name, (value, "seen"))
class Sub(metaclass=Watched): a = 1
class Block(torch.nn.Module):
    made = 0
    last = None
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2, 3))
    def forward(self, x):
        Block.made += 1
        type(self).last = x * 2
        return x * self.w * self.made
BLOCK, OTHER = Block(), Block()
WEIGHTS = {"w": torch.ones(3)}
P = torch.nn.Parameter(torch.ones(2, 3))
"""

ONE_GRAPH = table(r'''
# a setting for a while
with Lazily():
    r = x + 1 if Lazily.on() else x - 1
return r, Lazily.on(), Flag._state, Lazily._state
# a counter of a class
Flag.n += 1
return x * Flag.n, Lazily.n, Lazily().n
# seen by subclasses, instances and super
Flag.n = 5
Lazily.n = 6
return x + Strict().seen(), Strict.n, Strict().n, Flag().n, getattr(Strict, "n"), hasattr(Flag, "n")
# a name that is new
had = hasattr(Flag, "fresh"), getattr(Lazily, "fresh", 7)
Flag.fresh = x
return had, Lazily.fresh + 1, hasattr(Strict(), "fresh")
# an instance stands before its class
f = Flag()
f.n = 1
Flag.n = 8
return x + f.n, Flag().n
# of an abstract class
Abstract.count += 2
return x + Abstract.count
# a tensor noted by a module
r = BLOCK(x) + OTHER(y)
return r, Block.made, Block.last, BLOCK.last
# a container noted by a class
Flag.log = []
Flag.log.append(x + 1)
return len(Flag.log), Lazily.log[0] + 1
# on a result
z = x + 1
z.scale = 3
z.origin = x
return z, z.scale * z, z.origin is x, hasattr(x, "scale")
# a counter of a parameter
if not hasattr(P, "count"): P.count = 0
P.count += 1
return x * P.count, P.count
# by one name and by another
for p in BLOCK.parameters(): p.seen = getattr(p, "seen", 0) + 1
BLOCK.w.seen += 1
return x + BLOCK.w.seen
# a tensor on a parameter
P.average = getattr(P, "average", torch.zeros_like(P)).lerp(P.detach(), 0.5)
return P.average + x
# the same tensor again
z = x.contiguous()
z.mark = 1
return hasattr(x, "mark"), z is x, y + 1
# deleted again
z = x + 1
z.mark = 1
del z.mark
try: z.mark
except AttributeError as e: text = str(e)
return z, hasattr(z, "mark"), text
# deleted from a parameter
P.mark = x
del P.mark
return x + 1, hasattr(P, "mark")
# put into a dict for a while, inside of a transform
def product(row):
    before = WEIGHTS["w"]
    WEIGHTS["w"] = row
    result = x * WEIGHTS["w"]
    WEIGHTS["w"] = before
    return result
WEIGHTS["b"] = 1
WEIGHTS["b"] = 2
WEIGHTS["c"] = x
return torch.vmap(product)(y), WEIGHTS
# a parameter without gradients, inside of a transform
def product(row):
    p, q = torch.nn.Parameter(row, requires_grad=False), torch.nn.Parameter(x, False)
    kinds.append((type(p).__name__, isinstance(q, torch.nn.Parameter), p.requires_grad))
    return q * p, p
kinds = []
return torch.vmap(product)(y), kinds, torch.func.grad(lambda z: (torch.nn.Parameter(z, False) * z).sum())(x)
# itself
z = x + 1
z.me = z
return z.me.me is z, x * z.me
''')

PICKLES = table(r'''
# keys of arguments
def key(*args, **kw): return pickle.dumps(kw), pickle.dumps(args), pickle.dumps([1, 2.5, None, True, "x", b"y"]), pickle.dumps("a")
return x + 1, key(), key(1, diag=False, method="chol"), key(-1, 2 ** 80, a=1.5, b=None)
''')

OTHER_PICKLES = table(r'''
# one text twice, and another like it
text = "ab" * len(str(7))
return x + 1, pickle.dumps({"a": text, "b": text}), pickle.dumps(["ab", text])
# containers in containers
inner = [1]
return x + 1, pickle.dumps([inner, inner]), pickle.dumps({"a": {}})
# a dict from outside
KW["b"] = len(KW)
return x + 1, pickle.dumps(KW), pickle.dumps(KW, 2)
''')

ANY_GRAPHS = table(r'''
# a method is replaced
old = Flag.method
Flag.method = lambda self: 2
r = Flag().method()
Flag.method = old
return x + r, Flag().method()
# a metaclass that sees stores
Sub.a = 2
return x + 1, Sub.a
# of an enum
try: Colour.RED = 3
except Exception as e: return x + 1, type(e).__name__
return x + 1
# over a break
with Lazily():
    Flag.n = 4
    dynamo.graph_break()
    r = x + Lazily.n if Lazily.on() else x
return r, Lazily.on()
# the dict of the class
Flag.n = 3
return x + 1, vars(Flag)["n"], "n" in Flag.__dict__
# the dict, read before
d = Flag.__dict__
Flag.n = 4
return x + 1, d["n"]
# attributes of tensors over a break
z = x + 1
z.mark = x * 2
P.mark = 2
dynamo.graph_break()
return z.mark + z, P.mark
# a copy has them, too
z = x + 1
z.mark = 4
c = copy.deepcopy(z)
return c, c.mark
# a copy of an input
x.mark = 4
c = copy.deepcopy(x)
return c, c.mark
# the dict of a parameter
P.mark = 4
return x + 1, [k for k in P.__dict__ if not k.startswith("_")], "mark" in vars(P)
# deleted, but not there
try: del P.absent
except AttributeError as e: return x + 1, type(e).__name__
''')

test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP)
test_keys, test_other_keys = make_tests(PICKLES, OTHER_PICKLES, "import pickle\nKW = {'a': 1}")


@pytest.mark.parametrize("call", ["torch.equal(x, y)", "torch.allclose(x, y)"])
def test_break_of_a_bool_from_values(call: str) -> None:
    """What is said is not about sizes."""
    assert codes_of(f"return x + 1 if {call} else y") == {"item"}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_is_left_behind(backend: str) -> None:
    """The class and the parameter hold after each call what they hold after one of eager's."""

    class Seen:
        calls = 0

    def f(x: torch.Tensor, p: torch.nn.Parameter) -> torch.Tensor:
        Seen.calls += 1
        y = (x * p).relu()
        p.last = y.detach()  # type: ignore[attr-defined]
        p.calls = Seen.calls  # type: ignore[attr-defined]
        y.calls = Seen.calls  # type: ignore[attr-defined]
        return y

    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    for call in (1, 2, 3):
        result: Any = compiled(torch.full((2,), float(call)), parameter)
        held: Any = parameter
        assert Seen.calls == result.calls == held.calls == call
        assert torch.equal(held.last, result) and held.last is not result
        result.sum().backward()
    assert parameter.grad is not None and parameter.grad.tolist() == [6.0, 0.0]


def test_signature_of_a_compiled_module() -> None:
    """Libraries read it to learn which arguments a model takes."""

    class Model(torch.nn.Module):
        def __call__(self, x: torch.Tensor, scale: float = 2.0) -> Any:
            return x * scale

    for model in (Model(), torch.nn.Linear(2, 2)):
        for twin in (dynamo.compile(model), dynamo.disable(model)):
            assert inspect.signature(twin) == inspect.signature(model)
            assert inspect.signature(type(twin)) == inspect.signature(type(model))
