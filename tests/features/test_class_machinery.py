"""What classes are made of: slots, descriptors, `super`, `__new__`, abstract members, typing's own classes."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = r"""
import abc, enum, functools, typing
class Class: __slots__ = ("slot",)
class Sneaky: borrowed = Class.slot
class Shadow:
    __slots__ = ("shadowed",)
    shadowing = Class.slot
class Alias: __slots__ = ("a",)
Alias.b = Alias.a
class C1:
    def method(self): return super().__class__
class CellMeta(type):
    def __new__(cls, name, bases, namespace, cell):
        namespace['__classcell__'] = cell
        return super().__new__(cls, name, bases, namespace)
class BadDescriptor:
    def __set_name__(self, owner, name): 1/0
class WrongDescriptor:
    def __set_name__(self): pass
class AD:
    def __init__(self, fget, fset=None): self._fget = fget; self._fset = fset
    def getter(self, c): return AD(c, self._fget)
    def setter(self, c): return AD(self._fget, c)
    @property
    def __isabstractmethod__(self):
        return getattr(self._fget, '__isabstractmethod__', False) or getattr(self._fset, '__isabstractmethod__', False)
class NotBool:
    def __bool__(self): raise ValueError()
    __len__ = __bool__
class XRepr(typing.NamedTuple):
    x: int
    y: int = 1
    def __str__(self): return f'{self.x} -> {self.y}'
    def __add__(self, other): return 0
class POwn(typing.NamedTuple):
    x: int
    y: int
    def __eq__(self, o): return "eq"
    def __lt__(self, o): return "lt"
    def __mul__(self, o): return "mul"
    def __rmul__(self, o): return "rmul"
    def __len__(self): return 17
    def __getitem__(self, i): return "item"
    def __contains__(self, i): return True
    def __hash__(self): return 99
    def __iter__(self): return iter("ab")
    def __bool__(self): return False
    def __call__(self, v): return v + 1
    def __neg__(self): return "neg"
T = typing.TypeVar("T")
@typing.runtime_checkable
class PP(typing.Protocol):
    @property
    def attr(self): ...
@typing.runtime_checkable
class PP1(typing.Protocol):
    attr: int
@typing.runtime_checkable
class PPG(typing.Protocol[T]):
    attr: T
@typing.runtime_checkable
class MP(typing.Protocol):
    def attr(self): ...
class HasProp:
    @property
    def attr(self): return 42
class HasSlot: __slots__ = ("attr",)
class HasInst:
    def __init__(self): self.attr = 4
class Nothing: pass
def booh(self): raise AttributeError("booh")
class I: __init__ = property(booh)
class BadMeta(type):
    def __instancecheck__(cls, inst): 1/0
class SMeta(type):
    def __subclasscheck__(cls, subclass): raise ValueError()
class MyException(Exception, metaclass=SMeta): pass
class BadPrep(type):
    @classmethod
    def __prepare__(*args): return None
class FakeClass:
    @property
    def __bases__(self): return (int,)
class GN:
    def __getnewargs__(self): return "bad args"
class GNX:
    def __getnewargs_ex__(self): return (1, 2)
class CNew(object): __new__ = list.__new__
class DNew(list): __new__ = object.__new__
class FC:
    def __new__(cls, arg):
        if isinstance(arg, str): return [1, 2, 3]
        elif isinstance(arg, int): return object.__new__(FD)
        else: return object.__new__(cls)
class FD(FC):
    def __init__(self, arg): self.foo = arg
class autosuper(type):
    def __new__(metaclass, name, bases, dict):
        cls = super(autosuper, metaclass).__new__(metaclass, name, bases, dict)
        setattr(cls, "_%s__super" % name, super(cls))
        return cls
class AA(metaclass=autosuper):
    def meth(self): return "A"
class AB(AA):
    def meth(self): return "B" + self.__super.meth()
class AC(AA):
    def meth(self): return "C" + self.__super.meth()
class AE(AB, AC):
    def meth(self): return "E" + self.__super.meth()
"""

ANY_GRAPHS = table(r'''
# classmethod_descriptor get
d = dict.__dict__["fromkeys"]; return d.__get__(None, dict)([1]), d.__get__({})([1]), x + 1
# method descriptor get
return list.append.__get__([1])(2), str.lower.__get__("A")(), object.__init__.__get__.__name__, x + 1
# borrowed slot
s = Sneaky()
try: s.borrowed
except Exception as e: r = type(e), str(e)
try: s.borrowed = 4
except Exception as e: return r, type(e), str(e), x + 1
# del borrowed slot
s = Sneaky()
try: del s.borrowed
except Exception as e: return type(e), str(e), x + 1
# shadowing slot
s = Shadow(); s.shadowed = 4
try: r = s.shadowing
except Exception as e: r = type(e), str(e)
try: s.shadowing = 4
except Exception as e: return r, type(e), str(e), x + 1
# alias slot
s = Alias(); s.a = x + 1; r = s.b; s.b = 3
return r, s.a, s.b, x + 1
# slots list
class L: __slots__ = ["a"]
return L.__slots__, x + 1
# super class
return C1().method(), x + 1
# super deleted class cell
class X:
    def g(self):
        nonlocal __class__
        del __class__
        super()
try: X().g()
except Exception as e: return type(e), str(e), x + 1
# super two obj None
try: super(int, None).foo
except Exception as e: return type(e), str(e), x + 1
# autosuper outside
return AE().meth(), x + 1
# classcell overwritten
r = []
for bad in (None, 0, "", object()):
    try:
        class A(metaclass=CellMeta, cell=bad): pass
    except Exception as e: r.append((type(e), str(e)))
return r, x + 1
# classcell slot
try:
    class C3:
        __classcell__ = 42
        __slots__ = ["__classcell__"]
except Exception as e: return type(e), str(e), x + 1
# set name error notes
try:
    class A:
        d = BadDescriptor()
except Exception as e: return type(e), str(e), getattr(e, "__notes__", None), e.__cause__, x + 1
# set name wrong
try:
    class A:
        d = WrongDescriptor()
except Exception as e: return type(e), str(e), getattr(e, "__notes__", None), e.__cause__, x + 1
# bad prepare
try:
    class Foo(metaclass=BadPrep): pass
except TypeError as e: return str(e), x + 1
# abstract property of custom descriptor
class C(metaclass=abc.ABCMeta):
    @AD
    @abc.abstractmethod
    def foo(self): return 3
try: return C(), x
except TypeError as e: return str(e), C.__abstractmethods__, x + 1
# abstract getter
class C(metaclass=abc.ABCMeta):
    @AD
    @abc.abstractmethod
    def foo(self): return 3
    @foo.setter
    @abc.abstractmethod
    def foo(self, val): pass
class D(C):
    @C.foo.getter
    def foo(self): return super().foo
try: return D(), x
except TypeError as e: return str(e), C.__abstractmethods__, x + 1
# abstract not bool
try:
    class F(metaclass=abc.ABCMeta):
        def bar(self): pass
        bar.__isabstractmethod__ = NotBool()
        foo = property(bar)
except ValueError as e: return 5, x + 1
return 6
# bad new
r = []
class C(object): __new__ = list.__new__
class D(list): __new__ = object.__new__
for k in (C, D):
    try: k()
    except TypeError as e: r.append(str(e))
for k, a in ((object.__new__, ()), (object.__new__, ("",)), (list.__new__, (object,)), (object.__new__, (list,))):
    try: k(*a)
    except TypeError as e: r.append(str(e))
return r, x + 1
# bad new outside
r = []
for k in (CNew, DNew):
    try: k()
    except TypeError as e: r.append(str(e))
return r, x + 1
# funny new
class C:
    def __new__(cls, arg):
        if isinstance(arg, str): return [1, 2, 3]
        elif isinstance(arg, int): return object.__new__(D)
        else: return object.__new__(cls)
class D(C):
    def __init__(self, arg): self.foo = arg
d = C(1)
return d.foo, C("1"), D("1"), D(None).foo, D(1).foo, x + 1
# funny new outside
return FC(1).foo, FC("1"), FD("1"), FD(None).foo, FD(1).foo, x + 1
# property init
try: I()
except AttributeError as e: return str(e), x + 1
return 3
# classmethod of classmethod
class A:
    @classmethod
    @classmethod
    def g(cls): return cls
try: return A.g() is A, A().g() is A, x + 1
except TypeError as e: return str(e), x + 1
# classmethod of static
class A:
    @classmethod
    @staticmethod
    def g(): return 3
    @classmethod
    @property
    def h(cls): return 4
try: return A.g(), x + 1
except TypeError as e: return str(e), x + 1
# made lru classmethod
class A:
    @classmethod
    @functools.lru_cache
    def g(cls, v): return v + 1
return A.g(3), x + 1
# special lookup length_hint
r = []
class Chk:
    def __getattr__(self, n): r.append(n); raise AttributeError
class SpecialDescr:
    def __init__(self, impl): self.impl = impl
    def __get__(self, obj, owner): r.append(1); return self.impl.__get__(obj, owner)
class X:
    def __iter__(self): return iter([1])
    __length_hint__ = SpecialDescr(lambda self: 1)
v = list(X())
return v, r, x + 1
# annotations of type
foo = type("Foo", (), {})
a = "__annotations__" in foo.__dict__
d = foo.__annotations__
b = "__annotations__" in foo.__dict__
del foo.__annotations__
return a, d, b, "__annotations__" in foo.__dict__, x + 1
# annotations of a class from outside
a = "__annotations__" in vars(Nothing)
b = Nothing.__annotations__
c = "__annotations__" in vars(Nothing)
del Nothing.__annotations__
return a, b, c, "__annotations__" in vars(Nothing), x + 1
# annotations that are read
class A: pass
a = A.__annotations__
a["k"] = 5
return A.__annotations__ is a, A.__annotations__, A, A.__dict__["__annotations__"] is a, x + 1
# typevar module
T = typing.TypeVar("T"); P = typing.ParamSpec("P")
return T.__module__, P.__module__, typing.NewType("N", int).__module__, x + 1
# typevartuple module
T = typing.TypeVarTuple("T")
return T.__module__, T.__name__, x + 1
# literal union
class Ints(enum.IntEnum):
    A = 0
    B = 1
return (typing.Literal[Ints.A] | typing.Literal[Ints.A]) == typing.Literal[Ints.A], typing.Union[typing.Literal[Ints.A], typing.Literal[Ints.A]] == typing.Literal[Ints.A], x + 1
# isinstance any
try: isinstance(42, typing.Any)
except TypeError as e: return str(e), x + 1
# isinstance any class
class K(typing.Any): pass
try: isinstance(42, typing.Any)
except TypeError as e: return str(e), isinstance(K(), K), x + 1
# protocol property
r = []
for pc in (PP, PP1, PPG, MP):
    for k in (HasProp, HasSlot, HasInst, Nothing):
        try: r.append(isinstance(k(), pc))
        except TypeError as e: r.append(str(e))
return r, x + 1
# protocol made
T = typing.TypeVar("T")
@typing.runtime_checkable
class P(typing.Protocol):
    @property
    def attr(self): ...
@typing.runtime_checkable
class PG(typing.Protocol[T]):
    attr: T
r = []
for pc in (P, PG):
    for k in (HasProp, HasSlot, HasInst, Nothing):
        try: r.append(isinstance(k(), pc))
        except TypeError as e: r.append(str(e))
return r, x + 1
# bad instancecheck
u = int | BadMeta("A", (), {})
r = isinstance(1, u)
try: isinstance([], u)
except ZeroDivisionError as e: return r, str(e), x + 1
# bad instancecheck called later
u = int | BadMeta("A", (), {})
dynamo.graph_break()
try: isinstance([], u)
except ZeroDivisionError as e: return str(e), x + 1
# bases of instance
try: return issubclass(FakeClass(), int), x + 1
except Exception as e: return type(e), str(e)
# recursion in issubclass
class Failure:
    def __getattr__(self, attr): return (self, None)
try: issubclass(Failure(), int)
except Exception as e: return type(e), x + 1
# generic alias unbound
t = list[int]
a = t()
t.append(a, "foo")
return t.__getitem__(a, 0), t.__len__(a), a, x + 1
# named tuple add
return XRepr(1, 2) + XRepr(3), str(XRepr(4)), x + 1
# named tuple own ops
p = POwn(1, 2)
return p == 5, p < 5, p * 3, 3 * p, len(p), p[0], 7 in p, hash(p), [*p], bool(p), p(4), -p, x + 1
# named tuple reflected
return 2 * XRepr(1, 2), (1,) + XRepr(1), XRepr(1) + (1,), x + 1
# getnewargs bad
r = []
for o in (GN(), GNX()):
    for proto in (2, 3, 4):
        try: r.append(o.__reduce_ex__(proto))
        except TypeError as e: r.append(str(e))
return r, x + 1
# bad subclasscheck in handler
r = []
try:
    try: raise KeyError()
    except MyException: r.append(1)
    except KeyError: r.append(2)
except ValueError: r.append(3)
return r, x + 1
''')

_, test_any_graphs = make_tests([], ANY_GRAPHS, SETUP)
