"""A trace that another process has kept is taken where the program is the same, and never where it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.processes import run

# name: (program, [text in it, what stands there in the next process], more such pairs)
PROGRAMS: dict[str, tuple[str, list[tuple[str, str]]]] = {}


def program(name: str, source: str, *changes: tuple[str, str]) -> None:
    PROGRAMS[name] = source, list(changes)


program("function", """
def f(x):
    return torch.relu(x) + 1
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("+ 1", "+ 2"), ("relu(x)", "sigmoid(x)"))
program("helper", """
def helper(x, by=2.0):
    return x * by
def f(x):
    return helper(x) + 1
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("x * by", "x - by"), ("by=2.0", "by=3.0"), ("def helper(x, by=2.0):", "def helper(x, by=2.0, more=1):"),
    ("def run", "helper.__defaults__ = (5.0,)\ndef run"), ("def run", "def other(x): return -x\nhelper = other\ndef run"),
    ("def run", "def other(x, by=1.): return -x\nhelper.__code__ = other.__code__\ndef run"))
program("keyword default", """
def helper(x, *, by=2.0):
    return x * by
def f(x):
    return helper(x) + 1
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("by=2.0", "by=3.0"), ("def run", "helper.__kwdefaults__['by'] = 4.0\ndef run"))
program("constants of the module", """
SCALE, FLAG, SIZES, TABLE = 2.0, True, (1, 2), {"a": 1.0}
def f(x):
    return (x * SCALE if FLAG else x) + SIZES[1] + TABLE["a"]
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("2.0", "3.0"), ("True", "False"), ("(1, 2)", "(1, 3)"), ('"a": 1.0', '"a": 1.5'))
program("class", """
class Base(nn.Module):
    def scale(self, x):
        return x * 2
class Model(Base):
    factor = 3.0
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 5)
        self.bias = 0.5
    @property
    def shift(self):
        return 1.0
    @staticmethod
    def plain(x):
        return x - 1
    @classmethod
    def of_class(cls, x):
        return x * cls.factor
    def forward(self, x):
        return self.of_class(self.plain(self.scale(self.inner(x)))) + self.shift + self.bias
def run():
    torch.manual_seed(0)
    return [pair(Model(), torch.randn(4, 3))]
""", ("x * 2", "x * 4"), ("return 1.0", "return 2.0"), ("x - 1", "x - 2"), ("x * cls.factor", "x + cls.factor"),
    ("factor = 3.0", "factor = 4.0"), ("self.bias = 0.5", "self.bias = 0.25"), ("Linear(3, 5)", "Linear(3, 6)"),
    ("class Model(Base):", "class Model(Base):\n    def scale(self, x): return -x"),
    ("nn.Linear(3, 5)", "nn.Sequential(nn.Linear(3, 5), nn.ReLU())"),
    ("def run", "Model.plain = staticmethod(lambda x: x * 5)\ndef run"),
    ("def run", "nn.Linear.forward = lambda self, x: F.linear(x, self.weight, self.bias) * 7\ndef run"),
    ("def run", "F.linear = lambda x, w, b: x.mm(w.t()) * 9\ndef run"),
    ("def run", "torch.nn.modules.module.register_module_forward_hook(lambda m, a, r: r + 1)\ndef run"),
    ("pair(Model()", "pair(Model().eval()"))
program("class of the same name", """
class Model(nn.Module):
    def forward(self, x):
        return x + 1
def run():
    return [pair(Model(), torch.randn(4, 3))]
""", ("def run", "Old = Model\nclass Model(nn.Module):\n    def forward(self, x):\n        return x + 2\ndef run"),
    ("def run", "Model.forward = lambda self, x: x * 3\ndef run"),
    ("pair(Model()", "pair(hooked(Model())"))
PROGRAMS["class of the same name"][1][-1] = (
    "def run():\n    return [pair(Model()", "def hooked(model):\n    model.register_forward_hook(lambda m, a, r: r * 8)\n"
    "    return model\ndef run():\n    return [pair(hooked(Model())")
program("class made in a function", """
def make(by):
    class Model(nn.Module):
        def forward(self, x):
            return x * by + other(x)
    def other(x):
        return x - 1
    return Model()
def run():
    return [pair(make(2.0), torch.randn(4, 3))]
""", ("make(2.0)", "make(3.0)"), ("x - 1", "x - 2"), ("x * by", "x + by"))
program("training flag", """
class Model(nn.Module):
    def forward(self, x):
        return x + 1 if self.training else x - 1
def run():
    return [pair(Model().train(), torch.randn(4, 3))]
""", (".train()", ".eval()"), ("torch.randn(4, 3)", "torch.randn(4, 3, dtype=torch.float64)"),
    ("torch.randn(4, 3)", "torch.randn(5, 3)"), ("torch.randn(4, 3)", "torch.randn(3, 4).t()"),
    ("torch.randn(4, 3)", "torch.randn(4, 3, requires_grad=True), grad=True"),
    ("torch.randn(4, 3)", "torch.randn(4, 3), grad=True"))
program("torch's functions", """
def f(x):
    return torch.relu(x) + F.softmax(x, -1) + x.sigmoid() + torch.nn.functional.gelu(x)
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("def run", "torch.relu = torch.tanh\ndef run"), ("def run", "torch.Tensor.sigmoid = lambda x: x * 2\ndef run"),
    ("def run", "F.softmax = lambda x, d: x\ndef run"), ("def run", "def g(x, d, *more): return -x\nF.softmax.__code__ = g.__code__\ndef run"),
    ("def run", "torch.nn.functional.gelu = torch.nn.functional.silu\ndef run"))
program("patched library", """
torch.relu, kept = torch.tanh, torch.relu
def f(x):
    return torch.relu(x) + 1
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("torch.relu, kept = torch.tanh, torch.relu", ""))
program("patched class of a library", """
nn.Linear.forward = lambda self, x: F.linear(x, self.weight, self.bias) * 7
def run():
    torch.manual_seed(0)
    return [pair(nn.Linear(3, 4), torch.randn(2, 3))]
""", ("nn.Linear.forward =", "other ="))
program("closure", """
def make(by, offset):
    def inner(x):
        return x * by
    def f(x):
        return inner(x) + offset
    return f
def run():
    return [pair(make(2.0, 1), torch.randn(4, 3))]
""", ("make(2.0, 1)", "make(3.0, 1)"), ("make(2.0, 1)", "make(2.0, 2)"), ("x * by", "x - by"))
program("functions in a list of a class", """
def make(by):
    def check(x):
        return x * by
    return check
class Model(nn.Module):
    checks = {"a": [make(1.0), make(2.0)]}
    def forward(self, x):
        return self.checks["a"][1](x)
def run():
    return [pair(Model(), torch.randn(4, 3))]
""", ("x * by", "x - by"), ("make(2.0)", "make(3.0)"), ("[make(1.0), make(2.0)]", "[make(2.0), make(1.0)]"),
    ("[make(1.0), make(2.0)]", "[make(1.0), torch.relu]"), ("[make(1.0), make(2.0)]", "(make(1.0), make(2.5))"))
program("decorators", """
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(x):
        return f(f(x))
    return wrapper
@twice
def helper(x):
    return x + 0.5
part = functools.partial(lambda by, x: x * by, 3.0)
def f(x):
    return part(helper(x))
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("f(f(x))", "f(f(f(x)))"), ("x + 0.5", "x + 0.25"), ("@twice", ""), ("3.0)", "4.0)"), ("x * by", "x + by"))
program("asked once", """
import functools
ANSWER = 2.0
@functools.lru_cache
def asked(name):
    return ANSWER
def f(x):
    return x * asked("by")
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("ANSWER = 2.0", "ANSWER = 3.0"), ("return ANSWER", "return 5.0"))
program("operator of the program", """
COUNT = 3
LIBRARY = torch.library.Library("captures_changed", "FRAGMENT")
LIBRARY.define("shown(Tensor(a) x, int count) -> Tensor(a)")
LIBRARY.impl("shown", lambda x, count: x[:count], "CompositeImplicitAutograd")
@torch.library.custom_op("captures_changed::own", mutates_args=())
def own(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x.new_ones(COUNT) * scale
@own.register_fake
def _(x, scale=2.0):
    return x.new_empty(COUNT)
def f(x):
    y = own(x)
    shown = torch.ops.captures_changed.shown(y, 3)
    return y.shape[0] * shown + x * shown._is_view()
def run():
    return [pair(f, torch.rand(3)), pair(f, torch.rand(3, requires_grad=True), grad=True)]
""", ("COUNT = 3", "COUNT = 4"), ("own(x: torch.Tensor, scale: float = 2.0)", "own(x: torch.Tensor, scale: float = 3.0)"),
    ("x[:count]", "x[:count] + 1"), ("def run", "torch.ops.captures_changed.shown = lambda x, count: x[:count] + 1\ndef run"),
    ('LIBRARY.define("shown(', 'LIBRARY.define("shown.more(Tensor x) -> Tensor")\nLIBRARY.define("shown('))
program("enum", """
import enum
class Kind(enum.Enum):
    ONE = 1.0
    TWO = 2.0
def f(x):
    return x * sum(kind.value for kind in Kind) + Kind.ONE.value
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("TWO = 2.0", "TWO = 3.0"), ("TWO = 2.0", "TWO = 2.0\n    THREE = 3.0"), ("ONE = 1.0", "ONE = 4.0"))
program("records", """
import dataclasses, typing
@dataclasses.dataclass
class Options:
    by: float = 2.0
    shift: float = 1.0
class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: float
def f(x, options, both):
    return Pair(x * options.by + both.left, options.shift).left + both.right
def run():
    x = torch.randn(4, 3)
    return [pair(f, x, Options(), Pair(x, 3.0))]
""", ("by: float = 2.0", "by: float = 4.0"), ("Pair(x, 3.0)", "Pair(x, 5.0)"),
    ("    left: torch.Tensor\n    right: float", "    right: float\n    left: torch.Tensor"))
program("breaks", """
import sys
def inner(x):
    y = x * 2
    sys.stderr.write("")
    return y + 1
def f(x):
    y = torch.relu(x)
    z = inner(y)
    dynamo.graph_break()
    return z * 3 if z.sum() > 0 else z - 1
def run():
    return [pair(f, torch.randn(4, 3) + shift) for shift in (5, 0)]
""", ("x * 2", "x * 4"), ("y + 1", "y + 2"), ("z * 3", "z * 5"), ("relu(x)", "tanh(x)"))
program("method in C at a break", """
def f(x, seen):
    y = torch.relu(x) * 2
    seen.append(y.sum().item())
    return y + 1 if y.mean().tolist() > 0 else y - 1
def one(call, x):
    seen = []
    return call(x, seen), seen
def run():
    x = torch.randn(4, 3) + 5
    compiled = dynamo.compile(f)
    return [(one(compiled, x), one(f, x))]
""", ("* 2", "* 4"), (".item()", ".double().item()"), (".tolist()", ".item()"), ("y + 1", "y + 2"),
    ("def run", "torch.Tensor.item = lambda self: 7.0\ndef run"))
program("view of what gets a history after a write", """
def f(b):
    c = b * 2
    v = c[:, 1:3]
    c.mul_(3)
    c.requires_grad_()
    return v * 2, c
def one(call):
    v, c = call(torch.arange(8.0).view(2, 4))
    v.sum().backward()
    return v, c, c._version, v._version, c.is_leaf, v.requires_grad, c.grad
def run():
    return [(one(dynamo.compile(f)), one(f))]
""", ("mul_(3)", "mul_(4)"))
program("breaks in handlers", """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
    def forward(self, x):
        try:
            with torch.no_grad():
                x = self.inner(x)
                dynamo.graph_break()
                x = x + 1
            for n in range(2):
                x = x * 2
                dynamo.graph_break()
            raise ValueError("so")
        except ValueError as error:
            return x, str(error)
def run():
    torch.manual_seed(0)
    return [pair(Model(), torch.randn(4, 3))]
""", ("x + 1", "x + 2"), ("range(2)", "range(3)"), ('"so"', '"not so"'))
program("effects", """
SEEN, TOTAL = [], 0
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0
    def forward(self, x, given):
        global TOTAL
        self.count += 1
        self.last = x * 2
        given.append(x + 1)
        SEEN.append("call")
        TOTAL = TOTAL + 1
        return x * self.count
def one(compiled):
    global TOTAL
    SEEN.clear()
    TOTAL = 0
    model, given, x = Model(), [], torch.arange(6.0)
    call = dynamo.compile(model) if compiled else model
    results = [call(x, given) for _ in range(2)]
    return results, given, list(SEEN), TOTAL, model.count, model.last
def run():
    return [(one(True), one(False))]
""", ("x * 2", "x * 3"), ('"call"', '"called"'), ("TOTAL + 1", "TOTAL + 2"))
program("training", """
def run():
    pairs = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1))
    x = torch.randn(4, 3)
    for call in (dynamo.compile(model), model):
        model.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        pairs.append([loss.detach(), *[p.grad.clone() for p in model.parameters()]])
    return [tuple(pairs)]
""", ("nn.GELU()", "nn.ReLU()"), ("nn.Linear(8, 1)", "nn.Linear(8, 1, bias=False)"))
program("unread and read numbers", """
def f(x, n, text):
    return x * n if text == "times" else x + n
def run():
    return [pair(f, torch.randn(4, 3), n, "times") for n in (3,)]
""", ("(3,)", "(4,)"), ('"times") for', '"plus") for'), ("(3,)", "(3.0,)"))


program("signature", """
import inspect
def helper(x, by, shift):
    return x * by + shift
def f(x):
    names = list(inspect.signature(helper).parameters)
    return helper(x, 2.0, 3.0) * len(names) + (1.0 if "by" in names else 2.0)
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("by, shift):", "by, shift, more=3):"), ("by, shift):\n    return x * by", "be, shift):\n    return x * be"),
    ("def run", "helper.__wrapped__ = lambda x: x\ndef run"))
program("logged", """
import logging
logging.lastResort = None
LOG = logging.getLogger("captures")
SEEN = []
class Seen(logging.Handler):
    def emit(self, record):
        SEEN.append(record.getMessage())
def f(x):
    y = x * 2
    LOG.warning("called")
    return y + 1
def run():
    SEEN.clear()
    result = [pair(f, torch.randn(4, 3))]
    return [*result, (len(SEEN), EXPECTED)]
EXPECTED = 0
""", ("def run", "LOG.addHandler(Seen())\ndef run"))
PROGRAMS["logged"][1][0] = ("EXPECTED = 0", "EXPECTED = 2\nLOG.addHandler(Seen())")
program("told once", """
import functools
SEEN, TEXT = [], "a"
@functools.lru_cache
def once(text):
    SEEN.append(text)
def f(x):
    once(TEXT)
    return x * 2
def run():
    result = [pair(f, torch.randn(4, 3))]
    return [*result, (list(SEEN), [TEXT])]
""", ('TEXT = [], "a"', 'TEXT = [], "b"'), ("SEEN.append(text)", "SEEN.append(text); SEEN.append(1)"))
PROGRAMS["told once"][1].pop()
program("numbers that change", """
def f(x, n):
    table = [n, n * 2 + 1]
    dynamo.graph_break()
    return x * n, table
def run():
    return [pair(f, torch.randn(4, 3), n) for n in (3, 5, 7)]
""", ("n * 2 + 1", "n * 3 + 1"), ("x * n", "x + n"))
program("patterns and partials", """
import functools, re
NAME = re.compile("a+")
scaled = functools.partial(torch.mul, other=2.0)
def f(x):
    return scaled(x) if NAME.match("aab") else x
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("a+", "b+"), ("other=2.0", "other=3.0"), ("torch.mul,", "torch.sub,"))
program("hooks for all modules", """
NAMES = []
model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
def f(x):
    hook = nn.modules.module.register_module_forward_hook(lambda m, a, r: NAMES.append(type(m).__name__))
    r = model(x)
    hook.remove()
    return r
def run():
    torch.manual_seed(0)
    return [pair(f, torch.randn(4, 3)), (NAMES[:3], ["Linear", "Tanh", "Sequential"]), (len(NAMES), 6)]
""", ("nn.Tanh()", "nn.ReLU()"))
PROGRAMS["hooks for all modules"][1].clear()


WRAPPER = """
import functools
def helper(x):
    return x * 3
class Quantized(torch.Tensor):
    TABLES = {}
    @staticmethod
    def __new__(cls, numbers, scale, bits):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)
    def __init__(self, numbers, scale, bits):
        self.numbers, self.scale, self.bits = numbers, scale, bits
    def __tensor_flatten__(self):
        return ["numbers", "scale"], (self.bits,)
    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["numbers"], inner["scale"], *context)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if cls in cls.TABLES and func in cls.TABLES[cls]:
            return cls.TABLES[cls][func](*args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale, args[0].bits)
        return torch.ones(rows(), 3)
def rows():
    return 4
def implements(*functions):
    def decorator(function):
        for one in functions:
            @functools.wraps(function)
            def wrapper(*args, by=function):
                return by(*args)
            Quantized.TABLES.setdefault(Quantized, {})[one] = wrapper
        return function
    return decorator
@implements(torch.sub)
def _(x, w):
    return x
@implements(F.linear, torch.matmul)
def _(x, w, bias=None):
    return helper(x @ (w.numbers.to(w.scale.dtype) * w.scale * w.bits).t())
def weight():
    return Quantized(torch.ones(4, 3, dtype=torch.int8), torch.tensor(0.5), 8)
"""
program("quantized weights", WRAPPER + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(weight(), requires_grad=False)
    def forward(self, x):
        return F.linear(x, self.weight)
def run():
    return [pair(Model(), torch.randn(2, 3))]
""", ("x * 3", "x * 4"), ("w.scale *", "w.scale +"), ("0.5), 8", "0.5), 4"), ("tensor(0.5)", "tensor(0.5).double().float()[None]"),
    ("torch.int8", "torch.int16"), ("@implements(torch.sub)\ndef _(x, w):\n    return x\n", ""), ("return by(*args)", "return -by(*args)"),
    ("def run", "@implements(F.linear)\ndef other(x, w, bias=None):\n    return x\ndef run"))


program("number of a class below that of an instance", """
class Config:
    layers = 1200
    def __init__(self, layers):
        self.layers = layers
def f(x):
    config = Config(3)
    x = x * config.layers
    del config.layers
    return x * config.layers
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("Config(3)", "Config(2)"), ("layers = 1200", "layers = 1300"), ("def run", "Config.layers = 7\ndef run"))
program("types with parameters", """
KINDS, FORM = int | float, dict[str, list[int]]
def f(x):
    y = x * 2 if isinstance(2.0, KINDS) else x
    return y + 1 if FORM == dict[str, list[int]] else y
def run():
    return [pair(f, torch.randn(4, 3))]
""", ("int | float", "int | str"), ("dict[str, list[int]]\ndef", "dict[str, list[str]]\ndef"))
program("autograd function", """
SCALE = 2.0
def scaled(x):
    return x * SCALE
class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return scaled(x).sin() ** power
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return scaled(grad) * scaled(x).cos() * ctx.power * scaled(x).sin() ** (ctx.power - 1), None
def f(x):
    return Sine.apply(x, 2).exp()
def with_gradients(f, x):
    y = f(x)
    return y, torch.autograd.grad(y.sum(), x)[0]
def run():
    x = torch.randn(4, 3, requires_grad=True)
    compiled = dynamo.compile(f)
    return [(with_gradients(compiled, x), with_gradients(f, x))]
""", ("SCALE = 2.0", "SCALE = 3.0"), ("x * SCALE", "x + SCALE"), ("Sine.apply(x, 2)", "Sine.apply(x, 3)"),
    ("scaled(x).sin() ** power", "scaled(x).cos() ** power"), ("scaled(grad) *", "grad *"),
    ("def run", "Sine.forward = staticmethod(lambda ctx, x, power: (ctx.save_for_backward(x), setattr(ctx, 'power', 1), x.tan())[2])\ndef run"),
    ("def run", "Sine.backward = staticmethod(lambda ctx, grad: (grad * 5, None))\ndef run"))


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_same_program_is_not_traced_again_and_a_changed_one_is(name: str, tmp_path: Path) -> None:
    source, changes = PROGRAMS[name]
    first = run(tmp_path, source)
    assert first.traced > 0 and not first.defects
    second = run(tmp_path, source)
    assert not second.defects
    assert second.traced == 0 and second.reused == first.traced + first.reused, first.said + second.said
    for before, after in changes:
        assert before in source
        outcome = run(tmp_path, source.replace(before, after, 1))
        assert not outcome.defects, after
        assert outcome.traced > 0, (after, outcome.said)
    if changes:
        assert not run(tmp_path, source).defects


def test_a_trace_that_has_run_code_of_a_wrapper_is_not_cached(tmp_path: Path) -> None:
    """Of such code nobody knows what it has read; here no more than a number is left of its result."""
    source = WRAPPER + """
def f(x, w):
    return x * (-w).shape[0]
def run():
    return [pair(f, torch.randn(2, 3), weight())]
"""
    for text in (source, source, source.replace("return 4", "return 5")):
        outcome = run(tmp_path, text)
        assert outcome.reused == 0 and "code of Quantized has run that is not traced" in outcome.said
