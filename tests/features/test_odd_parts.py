"""What few programs do to functions, enums and modules: keywords of any name, more defaults than
parameters, code put before a function's own, members and properties of one name, failing descriptors."""

from __future__ import annotations

import pytest

from tests.features.harness import check

KEYWORDS = """
import collections, functools, operator, types
names = dict.fromkeys(("self", "cls", "tx", "function", "args", "kwargs", "fn", "name", "body", "var"), 3)
def collect(**kwargs): return kwargs
class Meta(type):
    def __new__(meta, title, bases, namespace, /, **kwargs):
        return super().__new__(meta, title, bases, namespace, **kwargs)
    def __init__(made, title, bases, namespace, /, **kwargs): made.given = kwargs
    def __call__(made, /, **kwargs): return super().__call__(**kwargs)
class Base:
    def __init__(this, /, **kwargs): this.kwargs = kwargs
    def __init_subclass__(made, /, **kwargs): made.kwargs = kwargs
    def take(this, /, **kwargs): return kwargs
class Called(Base, metaclass=Meta): pass
"""
CALLS = {
    "dict": "dict(**names)",
    "update": "(d := {}).update(**names) or d",
    "OrderedDict": "collections.OrderedDict(**names)",
    "defaultdict": "collections.defaultdict(None, **names)",
    "Counter": "collections.Counter(**names)",
    "partial": "functools.partial(collect, **names)()",
    "SimpleNamespace": "types.SimpleNamespace(**names)",
    "methodcaller": "operator.methodcaller('take', **names)(Base())",
    "operator.call": "operator.call(collect, **names)",
    "format": "'{self} {tx} {function} {name}'.format(**names)",
    "instance": "Base(**names).kwargs",
    "metaclass": "Called(**names).kwargs",
    "type()": "type('Made', (Base,), {}, **names).kwargs",
    "operator with self": "torch.ops.aten.add.Tensor(self=x, other=y)",
}


@pytest.mark.parametrize("call", CALLS)
def test_keywords_have_any_name(call: str) -> None:
    graphs = None if call in ("operator.call", "type()") else 1
    check(f"return x + 1, {CALLS[call]}", KEYWORDS, graphs=graphs)


@pytest.mark.parametrize("call", [
    "len(var=[1])", "operator.add(a=1, b=2)", "hasattr(var=1, name='real')", "callable(var=1)",
    "iter(var=[1])", "getattr(x, name='real')", "isinstance(var=1, classes=int)", "any(items=[1])", "sorted(items=[1])",
    "operator.contains(a=[1], item=1)", "math.prod(items=[2])", "sum(items=[2])", "hash(var=1)",
])
def test_keywords_that_python_does_not_take(call: str) -> None:
    check(f"return x + 1, {call}", "import math, operator", graphs=None)


@pytest.mark.parametrize("call", [
    "sum([1, 2], start=3)", "sorted([1, 2], reverse=True)", "math.prod([2, 3], start=4)",
    "pow(base=2, exp=3)", "max([1, 2], key=lambda one: -one)",
    "math.isclose(1.0, 1.01, abs_tol=0.1)", "min([], default=4)", "int('11', base=2)",
])
def test_keywords_that_python_takes(call: str) -> None:
    check(f"return x + 1, {call}", "import math, operator")


def test_keywords_of_classes_have_any_name() -> None:
    check("""
        class Made(Base, tx=1, function=2, body=3, name=4): pass
        return x + 1, Made.kwargs
    """, KEYWORDS, graphs=None)


DEFAULTS = """
def plain(a, b): return a, b
def more(a, *b): return a, b
def none(): return 7
def only(a, *, b=1): return a, b
for function in (plain, more, none, only): function.__defaults__ = (1, 2, 3)
"""


@pytest.mark.parametrize("call", [
    "plain()", "plain(5)", "plain(b=5)", "plain(5, 6)", "more()", "more(4, 5)", "none()", "only()",
    "none(1)", "plain(1, 2, 3)", "only(b=2)",
])
def test_more_defaults_than_parameters(call: str) -> None:
    check(f"return x + 1, {call}", DEFAULTS, graphs=None)


def test_code_that_its_table_of_lines_does_not_cover() -> None:
    check("return x + 1, Items([1, 2])[1]", """
        import dis, types
        def item(self, at): return super().__getitem__(at) + 10
        def cells(__class__): return (lambda: __class__).__closure__
        class Items(list): pass
        first = bytes([dis.opmap["COPY_FREE_VARS"], 1])
        code = item.__code__
        code = code.replace(co_freevars=("__class__",), co_code=first + code.co_code)
        Items.__getitem__ = types.FunctionType(code, globals(), "item", None, cells(Items))
    """, graphs=None)


ENUMS = """
import enum, types
class Named(enum.StrEnum):
    invalid = "invalid"; title = "shown"
class Own(enum.Enum):
    A = 1
    B = 2
    @enum.property
    def value(self): return self._value_ * 10
    @types.DynamicClassAttribute
    def name(self): return "the " + self._name_
class Further(enum.IntEnum):
    A = 1
    @enum.property
    def value(self): return super().value + 5
class Shadowing(enum.Enum):
    value = 1
    other = 2
class Bare(enum.Enum):
    A = 1
    first = enum.property()
    second = types.DynamicClassAttribute(None)
"""


@pytest.mark.parametrize("read", [
    "repr(Named.invalid.title)[:20]", "Named.title", "Own.A.value, Own.B.name, Own['A'].value",
    "Further.A.value, Further.A.name", "Shadowing.value, Shadowing.other", "Shadowing.other.name",
    "Shadowing.other.value", "Bare.A.first", "Bare.A.second", "Bare.first",
])
def test_members_and_properties_of_one_name(read: str) -> None:
    check(f"return x + 1, {read}", ENUMS, graphs=None)


def test_members_of_an_enum_that_is_changed() -> None:
    check("""
        class Plain(enum.Enum):
            A = 1
        @enum._simple_enum(enum.Enum)
        class Simple:
            A = 1
        enum._test_simple_enum(Plain, Simple)
        return x + 1
    """, "import enum", graphs=None)


MODULES = """
import types
class Failing:
    def __get__(self, instance, owner): raise RuntimeError("failing")
class Kind(types.ModuleType):
    absent = Failing()
failing = Kind("failing")
named = types.ModuleType("named")
named.__getattr__ = "no function"
"""


@pytest.mark.parametrize("module", ["failing", "named"])
@pytest.mark.parametrize("read", [
    "{}.absent", "getattr({}, 'absent', 1)", "hasattr({}, 'absent')",
])
def test_modules_that_fail_to_answer(module: str, read: str) -> None:
    check(f"return x + 1, {read.format(module)}", MODULES, graphs=None)
