"""What Python code may do, or meet, while a class is being made: it has no MRO yet, descriptors write
to it, what makes its parts raises."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = r"""
import abc, dataclasses, functools
LOG = []
class Asked(type):
    def mro(cls):
        seen = cls.__mro__, cls.__name__, cls.__bases__
        cls.seen = seen if seen[0] is None else "again"
        return type.mro(cls)
class ByHelper(type):
    def mro(cls): return order(cls)
def order(cls): return [*type.mro(cls)]
class BySuper(type):
    def mro(cls):
        kept = [cls]
        return [*super().mro(), Mixin] if kept[0] is cls else []
class Mixin:
    def mixed(self): return "mixed"
class Failing(type):
    def mro(cls): raise ValueError(cls.__name__)
class Instance(type):
    def mro(cls):
        try: cls.made = cls()
        except Exception as e: cls.made = type(e)
        return type.mro(cls)
class Logs(type):
    def mro(cls): LOG.append(cls.__name__); return type.mro(cls)
class Logged(metaclass=Logs): pass
class Moves(type):
    def mro(cls):
        if cls.__mro__ is not None: LOG.append(cls.__mro__)
        return type.mro(cls)
class Left: a = 1
class Right: a = 2
class Writes:
    def __set_name__(self, owner, name):
        setattr(owner, name + "_too", 3)
        owner.log = getattr(owner, "log", ()) + (name,)
class Key:
    def __init__(self, name): self.name = name
    def __hash__(self): return hash(self.name)
    def __eq__(self, other): LOG.append(other); return False
class BadKey(Key):
    def __eq__(self, other): raise ValueError(other)
    __hash__ = Key.__hash__
Odd = type("Odd", (), {Key("key"): 1, "b": 2})
Bad = type("Bad", (), {BadKey("key"): 1, "b": 2})
class OfBad(Bad): a = 3
class Watching:
    def __getattribute__(self, name): LOG.append(name); return object.__getattribute__(self, name)
watching = Watching()
class Slotted:
    __slotnames__ = [Left()]
"""

ROWS = table(r'''
# mro reads the class
class A(metaclass=Asked): pass
return A.seen, A.__mro__[1:], x + 1
# mro passes the class on
class A(metaclass=ByHelper): b = 3
return A.b, len(A.__mro__), x + 1
# mro calls super
class A(metaclass=BySuper): pass
return A().mixed(), [c.__name__ for c in A.__mro__], x + 1
# mro raises
try:
    class A(metaclass=Failing): pass
except ValueError as e: return str(e), x + 1
# mro makes an instance
class A(metaclass=Instance): pass
return type(A.made) is A or A.made, x + 1
# mro runs again with other bases
class A(Left, metaclass=Moves): pass
r = A.a; A.__bases__ = (Right,)
return r, A.a, x + 1
# mro runs once for each class
LOG.clear()
class A(metaclass=Logs): a = 3
class B(Logged): b = 4
C = Logs("C", (), {"c": 5})
return A.a, B.b, C.c, [*LOG], x + 1
# mro runs once for a class that stays
LOG.clear()
class A(Logged): a = 3
return A, LOG, x + 1
# two classes of one metaclass
r = []
for base in (Left, Right):
    class A(base, metaclass=Asked): pass
    r.append((A.a, A.seen))
return r, x + 1
# a descriptor adds to the class that names it
class A:
    d = Writes()
    e = Writes()
return A.d_too, A.e_too, A.log, [n for n in vars(A) if n[0] != "_"], x + 1
# a field with both defaults
try:
    @dataclasses.dataclass
    class A:
        a: int = dataclasses.field(default=1, default_factory=int)
except ValueError as e: return str(e), x + 1
# one cached property by two names
try:
    class A:
        @functools.cached_property
        def a(self): return 3
        b = a
except Exception as e: return type(e), str(e), e.__cause__, x + 1
# flags that exclude each other
log = []
class Told:
    def __init_subclass__(cls): log.append(cls.__name__)
try:
    class A(Told, metaclass=abc.ABCMeta): __abc_tpflags__ = 1 << 5 | 1 << 6
except TypeError as e: return str(e), log, x + 1
# slot names of a made class
class A: __slotnames__ = ["a"]
try: return A().__reduce_ex__(2)[1][0].__name__, x + 1
except Exception as e: return type(e), x + 1
# slot names that are no texts
try: return Slotted().__reduce_ex__(2)[1], x + 1
except Exception as e: return type(e), str(e), x + 1
# a key that looks at what is looked up
LOG.clear(); setattr(Odd, "other", 4)  # makes CPython forget what it has found
return getattr(Odd, "key", 5), Odd.b, [*LOG], x + 1
# the same of an instance
LOG.clear(); setattr(Odd, "other", 4)
return getattr(Odd(), "key", 5), Odd().b, [*LOG], x + 1
# a key that raises
return getattr(Bad, "key", 5), OfBad.a, OfBad().b, getattr(OfBad(), "key", 5), x + 1
# an object that sees what is asked of it
LOG.clear()
return len([watching]), [*LOG], x + 1
# odd protocols
r = []
for protocol in (None, "2", 1.5, True):
    try: r.append(Left().__reduce_ex__(protocol)[1][0])
    except TypeError as e: r.append(str(e))
return r, x + 1
''')

_, test_any_graphs = make_tests([], ROWS, SETUP)
