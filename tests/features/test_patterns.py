"""Patterns of `match` that classes and mappings answer, or refuse."""

from __future__ import annotations

from tests.features.harness import make_tests, table

SETUP = r"""
import abc, array, collections, collections.abc, types
class Class: __slots__ = ("slot",)
class MA:
    __match_args__ = (None,)
class MB:
    __match_args__ = ["a"]; a = 1
class Keys: KEY = "a"
class Pair:
    __match_args__ = ("first", "count")
    def __init__(self, first, count): self.first, self.count = first, count
class Plain: value = 3
class Computed:
    __match_args__ = ("seven",)
    @property
    def seven(self): return 7
class M1(collections.UserDict, collections.abc.Sequence): pass
class M3(collections.UserDict, list): pass
class M4(dict, collections.abc.Sequence): pass
class S1(collections.UserList, collections.abc.Mapping): pass
class S3(list, collections.abc.Mapping): pass
class S4(collections.UserList, dict): pass
for _k in (M1, M3, M4, S1, S3, S4): _k.__abstractmethods__ = frozenset()
"""

ANY_GRAPHS = table(r'''
# match args none
try:
    match MA(): 
        case MA(y): return 1
except TypeError as e: return str(e), x + 1
# match args list
try:
    match MB(): 
        case MB(y): return 1
except TypeError as e: return str(e), x + 1
# mapping duplicate
m = {"a": 0, "b": 1}
try:
    match m:
        case {Keys.KEY: y, "a": z}: return 1
except ValueError as e: return str(e), x + 1
# mapping sequence
r = []
for o in (M1(), M3(), M4(), S1(), S3(), S4()):
    match o:
        case [*_]: r.append("seq")
        case {}: r.append("map")
    match o:
        case {}: r.append("map")
        case [*_]: r.append("seq")
return r, x + 1
# patma more
class T(collections.abc.Sequence):
    def __len__(self): return 1
    def __getitem__(self, i): return 5
r = []
for o in (T(), collections.deque([1]), memoryview(b"a"), array.array("b", b"a"), range(1), collections.ChainMap({}), types.MappingProxyType({}), b"a", "a", bytearray(b"a"), {1}.__iter__()):
    match o:
        case [z]: r.append(("seq", z))
        case {}: r.append("map")
        case _: r.append("other")
return r, x + 1
''')

ONE_GRAPH = table(r'''
# class with tensors
match Pair(x, 2):
    case Pair(first, 1): return first
    case Pair(first, count=n): return first * n
# class by keyword and missing attribute
match Plain():
    case Plain(absent=z): return z
    case Plain(value=z): return x * z
# builtin classes
def kind(v):
    match v:
        case bool(): return "bool"
        case int(n): return n
        case str() as s: return s
        case torch.Tensor(): return "tensor"
        case dict(d) if d: return list(d)
        case [a, *rest]: return (a, len(rest))
        case _: return None
return x + 1, [kind(v) for v in (True, 3, "s", x, {"k": 1}, {}, [4, 5], (6,), None, range(2))]
# mapping with the rest
match {"a": x, "b": 2, "c": 3}:
    case {"z": _}: return x
    case {"a": t, "b": n, **rest}: return t * n, rest
# sequence of tensors
match [x, x * 2, x * 3]:
    case [a, b]: return a
    case [a, *middle, z]: return a + z, len(middle)
# nested classes
match Pair(Pair(x, 3), 4):
    case Pair(Pair(t, n), m): return t * n * m
# property of the pattern
match Computed():
    case Computed(seven): return x * seven
# too many patterns
try:
    match Pair(x, 1):
        case Pair(a, b, c): return a
except TypeError as e: return str(e), x + 1
# attribute twice
try:
    match Pair(x, 1):
        case Pair(a, first=b): return a
except TypeError as e: return str(e), x + 1
''')

test_one_graph, test_any_graphs = make_tests(ONE_GRAPH, ANY_GRAPHS, SETUP)
