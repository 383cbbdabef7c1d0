"""Programs in two versions, for `test_edited_programs.py`.

`<<this|that>>` in a text stands for one text in the first version and another in the second. A program defines
`f` and `run()`, which gives pairs (compiled, eager). What it changes of torch or of the interpreter it puts back: all
programs run in one process.
"""

from __future__ import annotations

PROGRAMS: dict[str, str] = {}


def program(name: str, source: str) -> None:
    assert name not in PROGRAMS, name
    PROGRAMS[name] = source


def of_value(name: str, value: str, expression: str = "x * VALUE", before: str = "") -> None:
    """A program whose result depends on a value of its module."""
    program(name, f"""
{before}
VALUE = {value}
def f(x):
    return {expression}
def run():
    return [pair(f, torch.rand(3))]
""")


def of_state(name: str, expression: str, first: str, second: str, before: str = "") -> None:
    """A program whose result depends on a state: `first` and `second` are context managers that set it."""
    program(name, f"""
import contextlib, os, sys
{before}
def f(x):
    return {expression}
def run():
    with <<{first}|{second}>>:
        return [pair(f, torch.rand(3))]
""")


# -- values of the module --------------------------------------------------------------------------
of_value("float", "<<2.0|3.0>>")
of_value("int and float", "<<2|2.0>>", "(x * VALUE, type(VALUE).__name__)")
of_value("bool and int", "<<True|1>>", "(x * VALUE, str(VALUE))")
of_value("zero's sign", "<<0.0|-0.0>>", "x / (x * VALUE)")
of_value("not a number", "<<float('nan')|2.0>>")
of_value("text", "<<'a'|'b'>>", "x * (2 if VALUE == 'a' else 3)")
of_value("bytes", "<<b'a'|b'b'>>", "x * VALUE[0]")
of_value("complex", "<<2j|3j>>", "x * VALUE.imag")
of_value("list", "[1.0, <<2.0|3.0>>]", "x * VALUE[1]")
of_value("longer list", "[1.0<<|, 2.0>>]", "x * sum(VALUE)")
of_value("nested", "{'a': [(1, {'b': <<2.0|3.0>>})]}", "x * VALUE['a'][0][1]['b']")
of_value("set", "<<{1, 2}|{1, 3}>>", "x * sum(VALUE)")
of_value("frozenset", "frozenset(<<(1, 2)|(1, 3)>>)", "x * (2 if 2 in VALUE else 3)")
of_value("range", "range(<<3|4>>)", "x * sum(VALUE)")
of_value("slice", "slice(0, <<1|2>>)", "x[VALUE]")
of_value("ordered dict", "collections.OrderedDict(a=<<2.0|3.0>>)", "x * VALUE['a']", "import collections")
of_value("order of a dict", "<<dict(a=1.0, b=2.0)|dict(b=2.0, a=1.0)>>", "x * list(VALUE.values())[0] + 0")
of_value("default dict", "collections.defaultdict(lambda: <<2.0|3.0>>)", "x * VALUE.get('a', VALUE.default_factory())",
         "import collections")
of_value("counter", "collections.Counter('<<aab|abb>>')", "x * VALUE['a']", "import collections")
of_value("deque", "collections.deque([1.0, <<2.0|3.0>>])", "x * VALUE[1]", "import collections")
of_value("namespace", "types.SimpleNamespace(a=<<2.0|3.0>>)", "x * VALUE.a", "import types")
of_value("mapping proxy", "types.MappingProxyType({'a': <<2.0|3.0>>})", "x * VALUE['a']", "import types")
of_value("item getter", "operator.itemgetter(<<0|1>>)", "x * VALUE((2.0, 3.0))", "import operator")
of_value("attribute getter", "operator.attrgetter('<<real|imag>>')", "x * VALUE(2 + 3j)", "import operator")
of_value("method caller", "operator.methodcaller('<<relu|neg>>')", "VALUE(x)", "import operator")
of_value("partial", "functools.partial(torch.add, alpha=<<2.0|3.0>>)", "VALUE(x, x)", "import functools")
of_value("partial's function", "functools.partial(torch.<<add|sub>>, alpha=2)", "VALUE(x, x)", "import functools")
of_value("pattern", "re.compile('<<a|b>>')", "x * (2 if VALUE.match('a') else 3)", "import re")
of_value("fraction", "fractions.Fraction(<<1|3>>, 2)", "x * float(VALUE)", "import fractions")
of_value("decimal", "decimal.Decimal('<<1.5|2.5>>')", "x * float(VALUE)", "import decimal")
of_value("date", "datetime.date(2020, 1, <<1|2>>)", "x * VALUE.day", "import datetime")
of_value("path", "pathlib.PurePosixPath('/a/<<b|c>>')", "x * (2 if VALUE.name == 'b' else 3)", "import pathlib")
of_value("generator of numbers", "random.Random(<<1|2>>)", "x * VALUE.random() * 0 + VALUE.getrandbits(1) * 0",
         "import random")
of_value("array", "np.array([<<2.0|3.0>>])", "x * float(VALUE[0])", "import numpy as np")
of_value("number of numpy", "np.float64(<<2.0|3.0>>)", "x * VALUE", "import numpy as np")
of_value("tensor", "torch.tensor(<<2.0|3.0>>)")
of_value("item of a tensor", "torch.tensor(<<2.0|3.0>>)", "x * VALUE.item()")
of_value("size of torch", "torch.Size((<<3|1>>, 1))", "x.new_ones(VALUE)")
of_value("dtype", "torch.float<<32|64>>", "x.to(VALUE)")
of_value("facts of a dtype", "torch.finfo(torch.float<<32|16>>)", "x * VALUE.eps")
of_value("device", "torch.device('<<cpu|meta>>')", "x * (2 if VALUE.type == 'cpu' else 3)")
of_value("context variable", "contextvars.ContextVar('v', default=<<2.0|3.0>>)", "x * VALUE.get()",
         "import contextvars")
of_value("weak reference", "weakref.ref(OBJECT)", "x * VALUE().by",
         "import weakref\nclass Object:\n    by = <<2.0|3.0>>\nOBJECT = Object()")
of_value("function in a list", "[lambda x: x * <<2|3>>]", "VALUE[0](x)")
of_value("function in a dict", "{'f': lambda x: x * <<2|3>>}", "VALUE['f'](x)")
of_value("chosen function", "torch.<<relu|neg>>", "VALUE(x)")
of_value("chosen class", "nn.<<ReLU|Tanh>>", "VALUE()(x)")
of_value("name of a function", "'<<relu|neg>>'", "getattr(torch, VALUE)(x)")
of_value("function of a module", "F.<<relu|silu>>", "VALUE(x)")
of_value("method of a class", "torch.Tensor.<<relu|neg>>", "VALUE(x)")
of_value("iterator", "iter([<<2.0|3.0>>] * 9)", "x * (next(VALUE) + 0)")
of_value("count", "itertools.count(<<2|3>>)", "x * 0 + next(VALUE) * 0", "import itertools")

# -- functions -------------------------------------------------------------------------------------
program("code of a helper", """
def helper(x):
    return x <<+|->> 1
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("constants in a nested function", """
def f(x):
    def inner(y):
        return y * <<2|3>>
    return inner(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("attribute of a function", """
def helper(x):
    return x * helper.by
helper.by = <<2.0|3.0>>
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("names of a function", """
def helper(x):
    return x
helper.__name__ = "<<a|b>>"
def f(x):
    return helper(x) * (2 if helper.__name__ == "a" else 3)
def run():
    return [pair(f, torch.rand(3))]
""")
program("text of a function", """
def helper(x):
    return x
helper.__doc__ = "<<a|b>>"
def f(x):
    return helper(x) * (2 if helper.__doc__ == "a" else 3)
def run():
    return [pair(f, torch.rand(3))]
""")
program("annotations of a function", """
def helper(x):
    return x
helper.__annotations__ = {"x": <<2.0|3.0>>}
def f(x):
    return helper(x) * helper.__annotations__["x"]
def run():
    return [pair(f, torch.rand(3))]
""")
program("defaults", """
def helper(x, by=<<2.0|3.0>>, *, shift=<<1|2>>, flag=[<<1|2>>]):
    return x * by + shift + flag[0]
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("tensor as default", """
def helper(x, by=torch.tensor(<<2.0|3.0>>)):
    return x * by
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("function as default", """
def helper(x, g=lambda x: x * <<2|3>>):
    return g(x)
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("closure of closures", """
def outer(by):
    def middle(shift):
        def inner(x):
            return x * by + shift
        return inner
    return middle(<<1|2>>)
g = outer(<<2.0|3.0>>)
def f(x):
    return g(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("function in a closure", """
def make(g):
    def inner(x):
        return g(x) + 1
    return inner
g = make(<<torch.relu|torch.neg>>)
def f(x):
    return g(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("decorator", """
import functools
def decorated(by):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args) * by
        return wrapper
    return decorate
@decorated(<<2|3>>)
def helper(x):
    return x + 1
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("order of decorators", """
import functools
def double(f):
    return functools.wraps(f)(lambda x: f(x) * 2)
def shifted(f):
    return functools.wraps(f)(lambda x: f(x) + 1)
@<<double|shifted>>
@<<shifted|double>>
def helper(x):
    return x
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("wrapped", """
import functools, inspect
def first(x): return x * 2
def second(x): return x * 3
def helper(x): return x
helper.__wrapped__ = <<first|second>>
def f(x):
    return inspect.unwrap(helper)(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("single dispatch", """
import functools
@functools.singledispatch
def helper(value, x):
    return x * 2
def of_int(value, x):
    return x * 3
helper.register(<<int|bytes>>)(of_int)
def f(x):
    return helper(1, x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("generator", """
def numbers():
    yield 1.0
    yield <<2.0|3.0>>
def f(x):
    return x * sum(numbers())
def run():
    return [pair(f, torch.rand(3))]
""")
program("context manager", """
import contextlib
@contextlib.contextmanager
def scaled():
    yield <<2.0|3.0>>
def f(x):
    with scaled() as by:
        return x * by
def run():
    return [pair(f, torch.rand(3))]
""")
program("recursion", """
def power(x, n):
    return x if n == 0 else power(x * 2, n - <<1|2>>)
def f(x):
    return power(x, 4)
def run():
    return [pair(f, torch.rand(3))]
""")
program("keywords of a call", """
def helper(x, **kwargs):
    return x * kwargs.get("<<a|b>>", 5.0)
def f(x):
    return helper(x, a=2.0, b=3.0)
def run():
    return [pair(f, torch.rand(3))]
""")
program("replaced code", """
def helper(x): return x * 2
def other(x): return x * 3
<<pass|helper.__code__ = other.__code__>>
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("replaced code of the function", """
def f(x): return x * 2
def other(x): return x * 3
<<pass|f.__code__ = other.__code__>>
def run():
    return [pair(f, torch.rand(3))]
""")
program("same name, other function", """
def helper(x): return x * 2
def other(x): return x * 3
other.__qualname__ = other.__name__ = "helper"
<<pass|helper = other>>
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("made by exec", """
scope = {}
exec("def helper(x): return x * <<2|3>>", scope)
helper = scope["helper"]
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("globals of another dict", """
import types
def helper(x): return x * BY
helper = types.FunctionType(helper.__code__, {"BY": <<2.0|3.0>>}, "helper")
def f(x):
    return helper(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("bound method of an object", """
class Scale:
    def __init__(self, by): self.by = by
    def times(self, x): return x * self.by
g = Scale(<<2.0|3.0>>).times
def f(x):
    return g(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("object that is called", """
class Scale:
    def __init__(self, by): self.by = by
    def __call__(self, x): return x * self.by <<+|->> 1
g = Scale(<<2.0|3.0>>)
def f(x):
    return g(x)
def run():
    return [pair(f, torch.rand(3))]
""")

# -- classes ---------------------------------------------------------------------------------------
CLASS = """
{before}
class Base:
    {base}
class Thing(Base):
    {body}
def f(x, thing):
    return {expression}
{after}
def run():
    return [pair(f, torch.rand(3), Thing())]
"""


def of_class(name: str, body: str, expression: str, base: str = "pass", before: str = "", after: str = "") -> None:
    program(name, CLASS.format(before=before, base=base, body=body, expression=expression, after=after))


of_class("method", "def m(self, x): return x * <<2|3>>", "thing.m(x)")
of_class("method of a base", "pass", "thing.m(x)", "def m(self, x): return x * <<2|3>>")
of_class("overridden or not", "def <<n|m>>(self, x): return x * 3", "thing.m(x)", "def m(self, x): return x * 2")
of_class("class attribute", "by = <<2.0|3.0>>", "x * thing.by")
of_class("attribute of a base", "pass", "x * thing.by", "by = <<2.0|3.0>>")
of_class("list of a class", "by = [<<2.0|3.0>>]", "x * thing.by[0]")
of_class("property", "by = property(lambda self: <<2.0|3.0>>)", "x * thing.by")
of_class("descriptor", "by = Desc()", "x * thing.by",
         before="class Desc:\n    def __get__(self, obj, cls=None): return <<2.0|3.0>>")
of_class("state of a descriptor", "by = Desc(<<2.0|3.0>>)", "x * thing.by",
         before="class Desc:\n    def __init__(self, n): self.n = n\n    def __get__(self, obj, cls=None): return self.n")
of_class("attribute hook", "def __getattr__(self, name): return <<2.0|3.0>>", "x * thing.by")
of_class("attribute before hook", "<<pass|by = 3.0>>\n    def __getattr__(self, name): return 2.0", "x * thing.by")
of_class("every attribute", "def __getattribute__(self, name): return <<2.0|3.0>>", "x * thing.by")
of_class("slots", "__slots__ = ('by',)\n    def __init__(self): self.by = <<2.0|3.0>>", "x * thing.by",
         "__slots__ = ()")
of_class("operator", "def __rmul__(self, x): return x * <<2|3>>", "2.0 * thing * x")
of_class("length", "def __len__(self): return <<2|3>>", "x * len(thing)")
of_class("truth", "def __bool__(self): return <<True|False>>", "x * (2 if thing else 3)")
of_class("item", "def __getitem__(self, key): return key * <<2|3>>", "x * thing[1]")
of_class("membership", "def __contains__(self, key): return <<True|False>>", "x * (2 if 1 in thing else 3)")
of_class("iteration", "def __iter__(self): return iter([<<2|3>>])", "x * sum(thing)")
of_class("comparison", "def __eq__(self, other): return <<True|False>>\n    __hash__ = None",
         "x * (2 if thing == 1 else 3)")
of_class("hash", "def __hash__(self): return <<2|3>>", "x * hash(thing)")
of_class("text of an object", "def __repr__(self): return '<<a|b>>'", "x * (2 if repr(thing) == 'a' else 3)")
of_class("constructor", "def __init__(self, by=<<2.0|3.0>>): self.by = by", "x * Thing().by")
of_class("maker", "def __new__(cls):\n        self = object.__new__(cls)\n        self.by = <<2.0|3.0>>\n        return self",
         "x * Thing().by")
of_class("metaclass", "pass", "x * Other.by", before="class Meta(type):\n    by = property(lambda cls: <<2.0|3.0>>)\n"
         "class Other(metaclass=Meta): pass")
of_class("call of a metaclass", "pass", "x * Other()", before="class Meta(type):\n"
         "    def __call__(cls): return <<2.0|3.0>>\nclass Other(metaclass=Meta): pass")
of_class("instance check", "pass", "x * (2 if isinstance(1, Other) else 3)", before="class Meta(type):\n"
         "    def __instancecheck__(cls, obj): return <<True|False>>\nclass Other(metaclass=Meta): pass")
of_class("registered with an ABC", "pass", "x * (2 if isinstance(thing, Shape) else 3)",
         before="import abc\nclass Shape(abc.ABC): pass", after="<<pass|Shape.register(Thing)>>")
of_class("no longer registered", "pass", "x * (2 if issubclass(Thing, Shape) else 3)",
         before="import abc\nclass Shape(abc.ABC): pass", after="<<Shape.register(Thing)|pass>>")
of_class("registered with the library", "pass", "x * (2 if isinstance(thing, collections.abc.Sequence) else 3)",
         before="import collections.abc", after="<<pass|collections.abc.Sequence.register(Thing)>>")
of_class("protocol", "<<by|other>> = 2", "x * (2 if isinstance(thing, Has) else 3)",
         before="import typing\n@typing.runtime_checkable\nclass Has(typing.Protocol):\n    by: int")
of_class("subclass hook", "pass", "x * (2 if isinstance(thing, Shape) else 3)", before="import abc\n"
         "class Shape(abc.ABC):\n    @classmethod\n    def __subclasshook__(cls, other): return <<True|False>>")
of_class("text of a class", "'<<a|b>>'", "x * (2 if Thing.__doc__ == 'a' else 3)")
of_class("annotations of a class", "by: <<2.0|3.0>>", "x * Thing.__annotations__['by']")
of_class("type hints", "by: <<int|float>>", "x * (2 if typing.get_type_hints(Thing)['by'] is int else 3)",
         before="import typing")
of_class("subclasses", "pass", "x * len(Base.__subclasses__())", after="<<pass|class More(Base): pass>>")
of_class("order of bases", "pass", "Both().m(x)", after="class Other:\n    def m(self, x): return x * 3\n"
         "class Both(<<Base, Other|Other, Base>>): pass", base="def m(self, x): return x * 2")
of_class("super", "def m(self, x): return super().m(x) + 1", "thing.m(x)", "def m(self, x): return x * <<2|3>>")
of_class("class method", "m = classmethod(lambda cls, x: x * <<2|3>>)", "Thing.m(x)")
of_class("static method", "m = staticmethod(lambda x: x * <<2|3>>)", "Thing.m(x)")
of_class("partial method", "def m(self, by, x): return x * by\n    n = functools.partialmethod(m, <<2|3>>)", "thing.n(x)",
         before="import functools")
of_class("cached property", "by = functools.cached_property(lambda self: <<2.0|3.0>>)\n    by.__set_name__(None, 'by')",
         "x * thing.by", before="import functools")
of_class("generic", "def __class_getitem__(cls, item): return <<2.0|3.0>>", "x * Thing[1]")
of_class("subclass is told", "pass", "x * thing.by",
         "def __init_subclass__(cls): cls.by = <<2.0|3.0>>")
of_class("set later", "by = 2.0", "x * thing.by", after="<<pass|Thing.by = 3.0>>")
of_class("deleted later", "by = 2.0", "x * thing.by", "by = 3.0", after="<<pass|del Thing.by>>")
of_class("method set later", "def m(self, x): return x * 2", "thing.m(x)",
         after="<<pass|Thing.m = lambda self, x: x * 3>>")
of_class("method of the object", "def m(self, x): return x * 2\n    def __init__(self): <<pass|self.m = lambda x: x * 3>>",
         "thing.m(x)")
of_class("order of names", "<<a = 1; b = 2|b = 2; a = 1>>", "x * (2 if [n for n in vars(Thing) if len(n) == 1][0] == 'a' else 3)")
of_class("number of names", "<<pass|a = 1>>", "x * len(vars(Thing))")
of_class("listed names", "<<pass|a = 1>>", "x * len(dir(thing))")
of_class("dict of an object", "def __init__(self): self.__dict__.update(<<dict(a=1)|dict(a=1, b=2)>>)",
         "x * len(vars(thing))")
of_class("no such attribute", "<<pass|by = 3.0>>", "x * getattr(thing, 'by', 2.0)")
of_class("no such attribute of the class", "<<pass|by = 3.0>>", "x * (3.0 if hasattr(Thing, 'by') else 2.0)")
program("another class of that name", """
def make(by):
    class Thing:
        def m(self, x): return x * by
    return Thing
Thing = make(<<2.0|3.0>>)
def f(x):
    return Thing().m(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("dataclass", """
import dataclasses
@dataclasses.dataclass(<<order=False|order=True>>)
class Thing:
    by: float = <<2.0|3.0>>
    more: list = dataclasses.field(default_factory=lambda: [<<1|2>>], metadata={"a": <<1|2>>})
def f(x):
    thing = Thing()
    names = dataclasses.fields(thing)
    return x * thing.by + thing.more[0] + names[1].metadata["a"]
def run():
    return [pair(f, torch.rand(3))]
""")
program("fields of a dataclass", """
import dataclasses
@dataclasses.dataclass
class Thing:
    a: float = 2.0
    <<pass|b: float = 3.0>>
def f(x):
    return x * len(dataclasses.fields(Thing))
def run():
    return [pair(f, torch.rand(3))]
""")
program("named tuple", """
import collections
Thing = collections.namedtuple("Thing", "<<a b|b a>>", defaults=[<<2.0|3.0>>])
def f(x):
    thing = Thing(1.0)
    return x * thing[1] + thing.a * 10
def run():
    return [pair(f, torch.rand(3))]
""")
program("defaults of a named tuple", """
import typing
class Thing(typing.NamedTuple):
    a: float = <<2.0|3.0>>
def f(x):
    return x * Thing._field_defaults["a"] + len(Thing._fields)
def run():
    return [pair(f, torch.rand(3))]
""")
program("enum of many kinds", """
import enum
class Kind(enum.IntFlag):
    A = 1
    B = <<2|4>>
class Name(str, enum.Enum):
    A = "<<a|b>>"
class Method(enum.Enum):
    A = 1
    def by(self): return <<2.0|3.0>>
def f(x):
    return x * int(Kind.A | Kind.B) + Method(1).by() + len(Name.A) + (2 if Name.A == "a" else 3)
def run():
    return [pair(f, torch.rand(3))]
""")
program("alias of an enum", """
import enum
class Kind(enum.Enum):
    A = 1
    B = <<1|2>>
def f(x):
    return x * len(Kind) + (1 if Kind.A is Kind.B else 0)
def run():
    return [pair(f, torch.rand(3))]
""")

# -- modules ---------------------------------------------------------------------------------------
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        {init}
    def forward(self, x):
        return {expression}
def run():
    torch.manual_seed(0)
    model = Model()
    {before}
    try:
        return [pair(model, torch.rand(3))]
    finally:
        {after}
"""


def of_model(name: str, expression: str = "self.inner(x)", init: str = "pass", before: str = "pass", after: str = "pass") -> None:
    program(name, MODEL.format(expression=expression, init=init, before=before, after=after))


of_model("attribute of a model", "x * self.by", "self.by = <<2.0|3.0>>")
of_model("buffer", "x * self.by", "self.register_buffer('by', torch.tensor(<<2.0|3.0>>))")
of_model("shape of a buffer", "x * self.by.shape[0]", "self.register_buffer('by', torch.ones(<<2|3>>))")
of_model("no parameter", "self.inner(x)", "<<pass|self.inner.bias = None>>")
of_model("training", "x * (2 if self.training else 3)", before="model.train(<<True|False>>)")
of_model("training of an inner module", "x * (2 if self.inner.training else 3)", before="model.inner.train(<<True|False>>)")
of_model("requires grad", "x * (2 if self.inner.weight.requires_grad else 3)", before="model.requires_grad_(<<True|False>>)")
of_model("type of an inner module", "self.act(x)", "self.act = nn.<<ReLU|Tanh>>()")
of_model("options of an inner module", "self.act(x)", "self.act = nn.LeakyReLU(<<0.5|0.25>>)")
of_model("number of inner modules", "self.acts(x)", "self.acts = nn.Sequential(*[nn.Tanh()] * <<2|3>>)")
of_model("shared module", "self.b(self.a(x))", "self.a = nn.Linear(3, 3); self.b = <<self.a|nn.Linear(3, 3)>>")
of_model("names of parameters", "x * len([n for n, _ in self.named_parameters()])", "<<pass|self.more = nn.Linear(1, 1)>>")
of_model("hook", before="model.inner.register_forward_hook(lambda m, a, r: r * <<2|3>>)")
of_model("no hook", before="<<model.inner.register_forward_hook(lambda m, a, r: r * 2)|pass>>")
of_model("hook before", before="<<pass|model.inner.register_forward_pre_hook(lambda m, a: (a[0] * 2,))>>")
of_model("hook of the model", before="<<pass|model.register_forward_hook(lambda m, a, r: r * 2)>>")
of_model("hook of all modules", before="h = nn.modules.module.register_module_forward_hook(lambda m, a, r: r * <<2|3>>)",
         after="h.remove()")
of_model("forward of the object", before="<<pass|model.inner.forward = lambda x: x * 2>>")
of_model("patched class", before="old = nn.Linear.forward; nn.Linear.forward = <<old|lambda self, x: x * 2>>",
         after="nn.Linear.forward = old")
of_model("attribute of a class of torch", "x * self.inner.by", before="nn.Linear.by = <<2.0|3.0>>", after="del nn.Linear.by")
of_model("attribute of the base class", "x * self.inner.by", before="nn.Module.by = <<2.0|3.0>>", after="del nn.Module.by")
of_model("absent in a class of torch", "x * getattr(self.inner, 'by', 2.0)", before="<<pass|nn.Linear.by = 3.0>>",
         after="<<pass|del nn.Linear.by>>")
of_model("changed constant of a class of torch", "x * len(self.inner.__constants__)",
         before="old = nn.Linear.__constants__; nn.Linear.__constants__ = <<old|old + ['a']>>", after="nn.Linear.__constants__ = old")
of_model("class of the object", before="model.__class__ = <<Model|type('Model', (Model,), {'forward': lambda self, x: x * 2})>>")
of_model("parametrization", before="nn.utils.parametrize.register_parametrization(model.inner, 'weight', nn.<<Tanh|ReLU>>())")
of_model("weight norm", before="<<pass|nn.utils.parametrizations.weight_norm(model.inner)>>")

# -- torch and the interpreter ---------------------------------------------------------------------
PATCHED = """
import contextlib
@contextlib.contextmanager
def patched(owner, name, value):
    had = name in vars(owner)
    old = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old) if had else delattr(owner, name)
@contextlib.contextmanager
def setting(get, put, value):
    old = get()
    put(value)
    try:
        yield
    finally:
        put(old)
"""


def of_patch(name: str, expression: str, owner: str, attribute: str, value: str, before: str = "") -> None:
    of_state(name, expression, "contextlib.nullcontext()", f"patched({owner}, '{attribute}', {value})", PATCHED + before)


def of_setting(name: str, expression: str, get: str, put: str, first: str, second: str, before: str = "") -> None:
    of_state(name, expression, f"setting({get}, {put}, {first})", f"setting({get}, {put}, {second})", PATCHED + before)


of_patch("function of torch", "torch.relu(x)", "torch", "relu", "torch.neg")
of_patch("function in a namespace", "F.gelu(x)", "F", "gelu", "torch.neg")
of_patch("method of tensors", "x.relu()", "torch.Tensor", "relu", "lambda x: x * 5")
of_patch("operator of tensors", "x + 1", "torch.Tensor", "__add__", "lambda x, y: x * 5")
of_patch("new method of tensors", "x.more() if hasattr(x, 'more') else x", "torch.Tensor", "more", "lambda x: x * 5")
of_patch("property of tensors", "x * len(x.shape)", "torch.Tensor", "shape", "property(lambda x: (1, 2, 3))")
of_patch("builtin", "x * len((1, 2))", "builtins", "len", "lambda x: 7", "import builtins")
of_patch("builtin by a global", "x * abs(-2.0)", "sys.modules[__name__]", "abs", "lambda x: 7.0")
of_patch("function of math", "x * math.sqrt(4.0)", "math", "sqrt", "lambda x: 7.0", "import math")
of_patch("constant of math", "x * math.pi", "math", "pi", "3.0", "import math")
of_patch("function of the library", "x * functools.reduce(max, [1, 2])", "functools", "reduce", "lambda f, x: 7.0", "import functools")
of_patch("function of operator", "operator.add(x, 1)", "operator", "add", "lambda x, y: x * 7", "import operator")
of_patch("class of the library", "x * len(collections.OrderedDict(a=1))", "collections", "OrderedDict", "lambda **k: [1, 2]", "import collections")
of_patch("function of numpy", "x * float(np.sqrt(4.0))", "np", "sqrt", "lambda x: 7.0", "import numpy as np")
of_patch("attribute of torch", "x * (2 if hasattr(torch, 'no_such_name') else 3)", "torch", "no_such_name", "1")
of_patch("class in torch", "nn.ReLU()(x)", "nn", "ReLU", "nn.Tanh")
of_patch("version", "x * len(torch.__version__)", "torch", "__version__", "'1'")
of_patch("arguments", "x * len(sys.argv)", "sys", "argv", "['a'] * 7")
of_patch("platform", "x * (2 if sys.platform == 'linux' else 3)", "sys", "platform", "'other'")
of_patch("loaded modules", "x * (2 if 'no_such_module' in sys.modules else 3)", "sys", "modules", "{**sys.modules, 'no_such_module': sys}")
of_setting("default dtype", "x * torch.ones(3)", "torch.get_default_dtype", "torch.set_default_dtype", "torch.float32", "torch.float64")
of_setting("asked default dtype", "x * (2 if torch.get_default_dtype() is torch.float32 else 3)", "torch.get_default_dtype", "torch.set_default_dtype",
           "torch.float32", "torch.float64")
of_setting("threads", "x * torch.get_num_threads()", "torch.get_num_threads", "torch.set_num_threads", "2", "1")
of_setting("matmul precision", "x * len(torch.get_float32_matmul_precision())", "torch.get_float32_matmul_precision",
           "torch.set_float32_matmul_precision", "'highest'", "'high'")
of_setting("deterministic", "x * (2 if torch.are_deterministic_algorithms_enabled() else 3)", "torch.are_deterministic_algorithms_enabled",
           "torch.use_deterministic_algorithms", "False", "True")
of_setting("flag of a library", "x * (2 if torch.backends.mkldnn.enabled else 3)", "(lambda: torch.backends.mkldnn.enabled)",
           "(lambda v: setattr(torch.backends.mkldnn, 'enabled', v))", "True", "False")
of_setting("flag of cudnn", "x * (2 if torch.backends.cudnn.benchmark else 3)", "(lambda: torch.backends.cudnn.benchmark)",
           "(lambda v: setattr(torch.backends.cudnn, 'benchmark', v))", "True", "False")
of_setting("attention", "x * (2 if torch.backends.cuda.flash_sdp_enabled() else 3)", "torch.backends.cuda.flash_sdp_enabled",
           "torch.backends.cuda.enable_flash_sdp", "True", "False")
of_setting("anomaly", "x * (2 if torch.is_anomaly_enabled() else 3)", "torch.is_anomaly_enabled", "torch.set_anomaly_enabled", "False", "True")
of_setting("seed", "x * (torch.initial_seed() % 5)", "torch.initial_seed", "torch.manual_seed", "2", "3")
of_setting("default device", "torch.ones(3) * (2 if torch.get_default_device().type == 'cpu' else 3)", "torch.get_default_device",
           "(lambda d: torch.set_default_device(None if d == torch.device('cpu') else d))", "torch.device('cpu')", "'meta'")
of_setting("limit of recursion", "x * (sys.getrecursionlimit() % 10)", "sys.getrecursionlimit", "sys.setrecursionlimit", "5002", "5003")
of_setting("environment", "x * float(os.environ['CAPTURES_BY'])", "(lambda: os.environ.get('CAPTURES_BY', '1'))",
           "(lambda v: os.environ.__setitem__('CAPTURES_BY', v))", "'2'", "'3'")
of_setting("environment by getenv", "x * float(os.getenv('CAPTURES_BY', '5'))", "(lambda: os.environ.get('CAPTURES_BY', '1'))",
           "(lambda v: os.environ.__setitem__('CAPTURES_BY', v))", "'2'", "'3'")
of_setting("folder", "x * len(os.getcwd())", "os.getcwd", "os.chdir", "'/'", "'/tmp'")
of_setting("files", "x * (2 if os.path.exists('no_such_file') else 3)", "os.getcwd", "os.chdir", "'/'", "FOLDER",
           "import tempfile\nFOLDER = tempfile.mkdtemp()\nopen(FOLDER + '/no_such_file', 'w').close()")
of_setting("level of a logger", "x * (2 if LOG.isEnabledFor(logging.INFO) else 3)", "(lambda: LOG.level)", "LOG.setLevel", "logging.INFO", "logging.ERROR",
           "import logging\nLOG = logging.getLogger('captures.level')")
of_setting("name of the thread", "x * len(threading.current_thread().name)", "(lambda: threading.current_thread().name)",
           "(lambda v: setattr(threading.current_thread(), 'name', v))", "'a'", "'bcd'", "import threading")
program("gradients", """
def f(x):
    return x * (2 if torch.is_grad_enabled() else 3)
def run():
    return [pair(f, torch.rand(3), grad=<<True|False>>)]
""")
of_state("autocast", "x * (2 if torch.is_autocast_enabled('cpu') else 3)", "contextlib.nullcontext()", "torch.autocast('cpu')")
of_state("autocast of products", "x[None] @ x[:, None]", "contextlib.nullcontext()", "torch.autocast('cpu')")
of_state("dtype of autocast", "x * (2 if torch.get_autocast_dtype('cpu') is torch.bfloat16 else 3)", "torch.autocast('cpu', torch.bfloat16)", "torch.autocast('cpu', torch.float16)")
of_state("inference", "x * (2 if torch.is_inference_mode_enabled() else 3)", "torch.inference_mode(False)", "torch.inference_mode(True)")
of_state("mode for functions", "torch.relu(x)", "contextlib.nullcontext()", "Mode()",
         "class Mode(torch.overrides.TorchFunctionMode):\n    def __torch_function__(self, f, t, a=(), k=None): return torch.tanh(*a) if f is torch.relu else f(*a, **(k or {}))")
of_state("warnings", "(warnings.warn('a'), x * 2)[1]", "contextlib.nullcontext()", "warnings.catch_warnings()", "import warnings")
of_state("saved tensors", "x * 2", "contextlib.nullcontext()", "torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)")

# -- what has no equal in another process ----------------------------------------------------------
for number, expression in enumerate((
    "hash('a text') % 5", "hash(OBJECT) % 97", "hash(run) % 97", "hash(Thing) % 97", "len(repr(OBJECT))", "sum(map(ord, repr(OBJECT)))", "sum(map(ord, str(run)))",
    "sum(map(ord, f'{OBJECT}'))", "id(OBJECT) % 97", "id(run) % 97", "os.getpid()", "threading.get_ident() % 97",
    "hash((1, 'a')) % 97", "hash(None) % 97", "hash(Thing.m) % 97", "hash(torch.relu) % 97", "hash(torch.float32) % 97", "list(TEXTS).index('a')",
    "sorted([run, Thing, torch], key=id).index(run)", "int(min(OBJECT, OTHER, key=id) is OBJECT)", "sys.getrefcount(OBJECT) * 0", "hash(Kind.A) % 97",
    "sum(map(ord, object.__repr__(OBJECT)))", "hash(x) * 0", "uuid.uuid1().int % 97 * 0", "list(dict.fromkeys(TEXTS)).index('a')", "len(str(torch.relu))",
    "sum(map(ord, '%s' % OBJECT))", "sum(map(ord, '{}'.format(OBJECT)))", "hash(MODEL) % 97", "sum(map(ord, str(MODEL.m)))", "next(iter(TEXTS)) == 'a'",
    "sum(map(ord, str(TEXTS)))", "min(TEXTS, key=lambda t: 0) == 'a'", "[*TEXTS][0] == 'a'", "sum(map(ord, str(functools.partial(run))))", "tuple(TEXTS)[1] == 'b'",
    "hash(b'a') % 97", "hash(frozenset(TEXTS)) % 97", "hash('a' + str(len(TEXTS))) % 97", "sum(map(ord, repr([OBJECT])))", "' '.join(TEXTS) == 'a b c d e'",
    "max(TEXTS, key=len) == 'a'", "hash(re.compile('a')) % 97", 
)):
    program(f"{number} {expression}", f"""
import enum, functools, os, re, sys, threading, uuid
TEXTS = {{"a", "b", "c", "d", "e"}}
class Kind(enum.Enum):
    A = 1
class Thing:
    def m(self): pass
OBJECT, OTHER = Thing(), Thing()
MODEL = Thing()
def f(x):
    return x * ({expression})
def run():
    return [pair(f, torch.rand(3))]
#<<|another file>>
""")

for title, items, gone in (("texts", '"a", "b", "c", "d", "e"', '"b"'), ("numbers", "16, 8, 0, 1, 9", "8")):
    program(f"set of {title} over a break", f"""
ITEMS = {{{items}}}
def f(x):
    items = ITEMS - {{{gone}}} | {{24}}
    print(end="")
    return x * (list(items).index(24) + <<2|3>>)
def run():
    return [pair(f, torch.rand(3))]
""")

# -- calls of the program by torch -----------------------------------------------------------------
program("autograd function", """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * <<2|3>>
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x * <<5|7>>
def f(x):
    return Own.apply(x).sum()
def run():
    pairs = []
    for call in (dynamo.compile(f), f):
        x = torch.ones(3, requires_grad=True)
        call(x).backward()
        pairs.append(x.grad)
    return [tuple(pairs)]
""")
program("hook of a tensor", """
def hook(g):
    return g * <<2|3>>
def f(x):
    y = x * 2
    y.register_hook(hook)
    return y.sum()
def run():
    pairs = []
    for call in (dynamo.compile(f), f):
        x = torch.ones(3, requires_grad=True)
        call(x).backward()
        pairs.append(x.grad)
    return [tuple(pairs)]
""")
program("operator of the program", """
@torch.library.custom_op("captures::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(<<2|3>>)
@own.register_fake
def _(x):
    return x.new_empty(<<2|3>>)
def f(x):
    y = torch.ops.captures.own(x)
    return y * y.shape[0]
def run():
    return [pair(f, torch.rand(3))]
""")
program("operator that is called by its name", """
@torch.library.custom_op("captures::second", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(<<2|3>>)
@own.register_fake
def _(x):
    return x.new_empty(<<2|3>>)
def f(x):
    y = own(x)
    return y * y.shape[0]
def run():
    return [pair(f, torch.rand(3))]
""")
program("checkpoint", """
from torch.utils.checkpoint import checkpoint
def inner(x):
    return (x * <<2|3>>).tanh()
def f(x):
    return checkpoint(inner, x, use_reentrant=False).sum()
def run():
    return [pair(f, torch.rand(3))]
""")
program("vmap and grad", """
def inner(x):
    return (x ** <<2|3>>).sum()
def f(x):
    return torch.func.grad(inner)(x) + torch.vmap(lambda y: y * <<2|3>>)(x)
def run():
    return [pair(f, torch.rand(3))]
""")
program("tree of the program", """
import torch.utils._pytree as pytree
class Box:
    def __init__(self, x): self.x = x
pytree.register_pytree_node(Box, lambda b: ([b.x * <<2|3>>], None), lambda xs, c: Box(xs[0]))
def f(x):
    return pytree.tree_map(lambda y: y + 1, Box(x)).x
def run():
    return [pair(f, torch.rand(3))]
""")
program("tensor of the program", """
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs or {}) <<+|->> 1
def f(x):
    return (x * 2).as_subclass(torch.Tensor)
def run():
    return [pair(f, torch.rand(3).as_subclass(Own))]
""")
program("class that overrides functions", """
class Own:
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return <<2.0|3.0>>
OWN = Own()
def f(x):
    return x * torch.add(x, OWN)
def run():
    return [pair(f, torch.rand(3))]
""")
program("scripted", """
@torch.jit.script
def helper(x):
    return x * <<2|3>>
def f(x):
    return helper(x) + 1
def run():
    return [pair(f, torch.rand(3))]
""")
program("optimizer", """
def run():
    pairs = []
    for compiled in (True, False):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=<<0.5|0.25>>, momentum=<<0|0.5>>)
        def step(x):
            (weight * x).sum().backward()
            optimizer.step()
        call = dynamo.compile(step) if compiled else step
        call(torch.ones(3)), call(torch.ones(3))
        pairs.append(weight.detach())
    return [tuple(pairs)]
""")
program("conditions and loops of torch", """
def f(x):
    return torch.cond(x.sum() > 0, lambda x: x * <<2|3>>, lambda x: -x, (x,))
def run():
    return [pair(f, torch.rand(3))]
""")
program("disabled helper", """
<<|@dynamo.disable>>
def helper(x):
    return x * 2
def f(x):
    return helper(x) + 1
def run():
    return [pair(f, torch.rand(3))]
""")
program("break in the middle", """
def helper(x):
    print(end="")
    return x * <<2|3>>
def f(x):
    y = x + 1
    dynamo.graph_break()
    return helper(y) + 1
def run():
    return [pair(f, torch.rand(3))]
""")
program("error that is caught", """
class Own(Exception):
    by = <<2.0|3.0>>
def helper(x):
    raise <<ValueError|Own>>("a")
def f(x):
    try:
        helper(x)
    except ValueError as error:
        return x * 2
    except Own as error:
        return x * error.by
def run():
    return [pair(f, torch.rand(3))]
""")
program("line and file", """
import sys
def helper():
    <<|

    >>
    return sys._getframe().f_lineno
def f(x):
    return x * helper()
def run():
    return [pair(f, torch.rand(3))]
""")
program("the caller", """
import sys
def helper():
    return sys._getframe(1).f_code.co_name
def <<g|f>>(x):
    return x * (2 if helper() == "f" else 3)
def run():
    return [pair(<<g|f>>, torch.rand(3))]
""")
program("source", """
import inspect
def helper(x):
    return x <<+|->> 1
def f(x):
    return x * (2 if "+" in inspect.getsource(helper) else 3)
def run():
    return [pair(f, torch.rand(3))]
""")
program("names of the module", """
<<pass|MORE = 1>>
def f(x):
    return x * (2 if "MORE" in globals() else 3)
def run():
    return [pair(f, torch.rand(3))]
""")
program("mark of a dimension", """
from dynamo import counters
def f(x):
    return x * 2
def run():
    x = torch.rand(3)
    <<pass|dynamo.mark_dynamic(x, 0)>>
    compiled = dynamo.compile(f)
    result = compiled(x), f(x)
    compiled(torch.rand(4)), compiled(torch.rand(5))
    return [result, (counters["stats"]["frames"], <<2|1>>)]
""")
program("module in a function", """
import sys, types
MODULE = types.ModuleType("captures_module")
MODULE.by = <<2.0|3.0>>
sys.modules["captures_module"] = MODULE
def f(x):
    import captures_module
    from captures_module import by
    return x * by + captures_module.by
def run():
    return [pair(f, torch.rand(3))]
""")
program("attribute hook of a module", """
import sys, types
MODULE = types.ModuleType("captures_hooked")
MODULE.__getattr__ = lambda name: <<2.0|3.0>>
sys.modules["captures_hooked"] = MODULE
def f(x):
    import captures_hooked
    return x * captures_hooked.by
def run():
    return [pair(f, torch.rand(3))]
""")
program("class of a module", """
import sys, types
class Own(types.ModuleType):
    by = property(lambda self: <<2.0|3.0>>)
MODULE = Own("captures_own")
sys.modules["captures_own"] = MODULE
def f(x):
    import captures_own
    return x * captures_own.by
def run():
    return [pair(f, torch.rand(3))]
""")
program("thread", """
import threading
LOCAL = threading.local()
LOCAL.by = <<2.0|3.0>>
def f(x):
    return x * LOCAL.by
def run():
    return [pair(f, torch.rand(3))]
""")
program("rank", """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
def f(x):
    return x * (dist.get_rank() + 2) + dist.get_world_size()
def run():
    dist.init_process_group("fake", store=FakeStore(), rank=<<0|1>>, world_size=<<2|3>>)
    try:
        return [pair(f, torch.rand(3))]
    finally:
        dist.destroy_process_group()
""")
program("sum over ranks", """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
def f(x):
    y = x * 2
    dist.all_reduce(y)
    return y * dist.get_world_size() if dist.get_rank() == 0 else y
def run():
    dist.init_process_group("fake", store=FakeStore(), rank=<<0|1>>, world_size=2)
    try:
        return [pair(f, torch.rand(3))]
    finally:
        dist.destroy_process_group()
""")
program("classes that are made", """
def f(x):
    class Meta(type):
        @classmethod
        def __prepare__(cls, name, bases):
            return {"made": name}
        def __new__(cls, name, bases, own):
            return super().__new__(cls, name, bases, dict(own))
        def __init__(cls, name, bases, own):
            super().__init__(name, bases, own)
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.tag = <<2.0|3.0>>
            return made
    class Thing(metaclass=Meta):
        def __init__(self, by):
            self.by = by
    thing = Thing(3)
    return x * thing.by * thing.tag + len(Thing.made)
def run():
    return [pair(f, torch.rand(3))]
""")
program("environment of the process", """
import os
BY = float(os.environ.get("CAPTURES_NONE", "<<2|3>>"))
def f(x, by=BY):
    return x * by
def run():
    return [pair(f, torch.rand(3))]
""")
program("aliases", """
def f(x, y):
    x.add_(1)
    return x * y
def run():
    a, b = torch.ones(3), torch.ones(3)
    c, d = torch.ones(3), torch.ones(3)
    compiled = dynamo.compile(f)
    return [(compiled(a, <<b|a>>), f(c, <<d|c>>))]
""")
program("same list twice", """
def f(x, a, b):
    a.append(1.0)
    return x * len(b)
def run():
    compiled = dynamo.compile(f)
    a, b, c, d = [], [], [], []
    return [(compiled(torch.ones(3), a, <<b|a>>), f(torch.ones(3), c, <<d|c>>))]
""")
program("conjugates and views", """
def f(x):
    return x * (2 if x.is_conj() else 3) + x.storage_offset()
def run():
    x = torch.ones(4, dtype=torch.complex64)
    return [pair(f, <<x[:3]|x[1:].conj()>>)]
""")
program("leaf", """
def f(x):
    return x * (2 if x.is_leaf else 3)
def run():
    x = torch.ones(3, requires_grad=True)
    return [pair(f, <<x|x * 1>>, grad=True)]
""")
program("gradient of an input", """
def f(x):
    return x * (2 if x.grad is None else 3)
def run():
    x = torch.ones(3, requires_grad=True)
    <<pass|x.grad = torch.ones(3)>>
    return [pair(f, x, grad=True)]
""")
program("attribute of a tensor", """
def f(x):
    return x * getattr(x, "by", 2.0)
def run():
    x = torch.ones(3)
    <<pass|x.by = 3.0>>
    return [pair(f, x)]
""")
