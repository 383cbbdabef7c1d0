"""What the standard library does besides giving a value: it warns, calls the program's functions, makes classes by
annotations, gives records with more than their items."""

from __future__ import annotations

import pytest

from tests.features.harness import table
from tests.features.reference import compare

PROGRAMS = table('''
# fields by flags of a loop
---
seen = []
for h, c in [(True, False), (False, True), (None, False), (None, True)]:
    @dataclasses.dataclass(unsafe_hash=True)
    class C:
        a: int = dataclasses.field(compare=c, hash=h, repr=c, default=5)
    seen.append((hash(C(5)) == hash((5,)), hash(C(5)) == hash(()), C(1) == C(2), repr(C(1))))
return x + 1, seen
# fields with a dict of metadata
---
d = {}
@dataclasses.dataclass
class C:
    a: int = dataclasses.field(metadata=d)
first = len(dataclasses.fields(C)[0].metadata)
d['k'] = 1
return x + 1, first, dict(dataclasses.fields(C)[0].metadata)
# fields for the initialiser only
---
@dataclasses.dataclass
class B:
    a: int
    b: dataclasses.InitVar[int]
    _: dataclasses.KW_ONLY
    c: dataclasses.InitVar[int] = 3
    def __post_init__(self, b, c): self.a = (self.a, b, c)
return x + 1, vars(B(0, 10)), vars(B(1, 2, c=4)), [f.name for f in dataclasses.fields(B)]
# a field for the initialiser has no factory
---
try:
    @dataclasses.dataclass
    class C:
        a: dataclasses.InitVar[int] = dataclasses.field(default_factory=int)
except TypeError as error: return x + 1, str(error)
# annotations as texts
from dataclasses import InitVar
from typing import ClassVar
---
seen = []
for t in ('ClassVar[int]', 'InitVar[int]', ' typing.ClassVar', 'int'):
    @dataclasses.dataclass
    class C:
        a: t
        b: 'ClassVar[int]' = 3
    try: seen.append(vars(C(10)))
    except TypeError as error: seen.append(str(error))
return x + 1, seen
# the default of a field is told its name
class D:
    def __set_name__(self, owner, name): self.name = name
---
@dataclasses.dataclass
class C:
    a: int = dataclasses.field(default=D(), init=False)
return x + 1, C.a.name
# handlers of errors in texts
import codecs
class H:
    where = 0
    def handle(s, error): LOG.append(error.reason); return '<?>', s.where
H.one = H()
---
codecs.register_error('tests.handle', H.one.handle)
seen = []
for where in (-1, 1):
    H.one.where = where
    seen += [b'\\xff0'.decode('ascii', 'tests.handle'), '\\xff0'.encode('ascii', errors='tests.handle'),
             str(b'\\xff0', 'ascii', 'tests.handle'), bytes('\\xff0', 'ascii', 'tests.handle')]
return x + 1, seen, LOG[:], b'\\xff'.decode('ascii', 'replace')
# results of a subclass warn
class I:
    def __index__(s): return True
class N:
    def __int__(s): return True
class G(float): pass
class F:
    def __float__(s): return G(2.5)
---
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter('always')
    seen = [operator.index(I()), int(I()), int(N()), float(F()), [5, 6, 7][I()], 'a' * I(), float(I())]
return x + 1, seen, [str(w.message) for w in told]
# patterns that warn
import re
---
re.purge()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter('always')
    found = re.compile('[0-9--1]').findall('a-3'), re.findall('[[a]', 'a['), re.sub('a', 'b', 'ca')
return x + 1, found, [str(w.message) for w in told]
# a pattern that is printed
import re
---
re.compile('a|b', re.DEBUG)
return x + 1
# formats that are no texts
import fractions
---
seen = []
for value in (1, 'a', None, [1], fractions.Fraction(1, 2), True):
    for spec in (None, 3):
        try: seen.append(format(value, spec))
        except TypeError as error: seen.append(str(error))
return x + 1, seen
# attributes of built-in types
---
seen = []
for kind in (int, collections.deque, itertools.count):
    try: kind.extra = 1
    except TypeError as error: seen.append(str(error))
    try: setattr(kind, 'extra', 1)
    except TypeError as error: seen.append(str(error))
    try: del kind.extra
    except TypeError as error: seen.append(str(error))
return x + 1, seen
# a key in the dict of an object that is no name
class A: pass
---
a = A()
a.__dict__[1] = 1
a.b = 2
return x + 1, a.__dict__, len(vars(a))
# records with more than their items
import os, time
S = os.stat_result(range(10), {'st_mtime': 1.5, 'st_blksize': 512})
T = time.gmtime(5)
---
return (x + 1, S.st_mtime, S[8], S.st_size, S.st_blksize, len(S), S == S, T.tm_zone, T.tm_gmtoff, T.tm_year, T[:2],
        sys.version_info >= (3, 8), x.max(dim=0).indices)
# a signature that is none
import inspect
def odd(a): pass
odd.__signature__ = 34
---
try: return x + 1, inspect.signature(odd)
except TypeError as e: return x + 2, str(e)
# the text of a struct sequence
import time
---
t = time.gmtime(0); return x + 1, repr(t), str(t), f"{t} {[t]}", "%s" % (t,), t[:2], t.tm_year, t == tuple(t)
# records that are made
import os, time
---
t = time.struct_time([[i] for i in range(9)])
c, d = copy.copy(t), copy.deepcopy(t)
u = os.uname_result('abcde')
return x + 1, t.tm_year, c[0] is t[0], d[0] is t[0], d == t, type(c), u.sysname, u[1], u
# hashes of subclasses of float
class F(float): pass
---
v, w = F('nan'), F(2.0)
return x + 1, hash(v) == object.__hash__(v), hash(w) == hash(2.0)
# parts of the generator of numbers that are replaced
from unittest import mock
---
with mock.patch('random.Random.random') as made:
    made.side_effect = [0.45]
    a = random.gammavariate(1.0, 3.14)
with mock.patch.object(random.Random, 'random', lambda self: 0.45):
    b = random.gammavariate(1.0, 3.14), random.uniform(0, 2)
return x + 1, a, b
# a module that is taken away
import colorsys
---
sys.modules['colorsys'] = None
try:
    import colorsys as found
    seen = 'imported'
except ImportError as error: seen = str(error)
finally: sys.modules['colorsys'] = colorsys
return x + 1, seen
''')


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_like_eager(name: str, text: str) -> None:
    compare(text)
