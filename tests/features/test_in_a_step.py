"""What training scripts use of Python's library in a step: captured where it is known while tracing, right
where it breaks the graph (clocks, files, locks, the environment)."""

from __future__ import annotations

import io
import json

import torch

import dynamo
from tests.features.harness import make_tests, table

SETUP = r'''
import io, os, sys, re, json, time, math, uuid, hashlib, heapq, bisect, string, decimal, fractions, threading, contextlib, functools, traceback, inspect, copy, importlib, weakref, logging, collections, itertools, random, textwrap, datetime, struct, base64, statistics, operator, types
LOG = []
torch.manual_seed(0)
CONFIG = {"lr": 0.1, "names": ["a", "b"]}
LINE = re.compile(r"(?P<k>\w+)=(?P<v>\d+)")
LOCK = threading.Lock()
logger = logging.getLogger("p4")
class Timer:
    def __enter__(self): self.t = time.perf_counter(); return self
    def __exit__(self, *a): self.d = time.perf_counter() - self.t
class Lazy:
    n = 0
    @functools.cached_property
    def v(self): Lazy.n += 1; return Lazy.n
class Dies:
    def __del__(self): LOG.append("del")
class Model(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.Linear(3, 3); self.meta = {"a": [1]}
    def forward(self, v): return self.l(v)
M = Model()
class Pt:
    __match_args__ = ("a", "b")
    def __init__(self, a, b): self.a, self.b = a, b
H = []
'''

ONE_GRAPH = table(r'''
# print to stderr
print("e", file=sys.stderr); print("o", flush=True); return x + 1
# exc info
try: 1 / 0
except ZeroDivisionError: a = sys.exc_info()[0]
return x + 1, a, sys.exc_info()
# exc info value
try: raise ValueError(3)
except ValueError: k, v, t = sys.exc_info(); return x + 1, k is ValueError, v.args, t is not None
# currentframe
return x + 1, inspect.currentframe().f_code.co_name
# del names
q = 1; del q
try: q
except UnboundLocalError as e: return x + 1, str(e)
# global creates
global FRESH
FRESH = x + 1
return FRESH
# generator finally
def g():
    try: yield 1; yield 2
    finally: LOG.append("closed")
a = g(); b = next(a); a.close(); return x + b, LOG[-1]
# generator in a loop that breaks
def g():
    try:
        for i in range(9): yield i
    finally: LOG.append("gen done")
for v in g():
    if v == 2: break
return x + v, LOG[-1]
# exit stack order
with contextlib.ExitStack() as s:
    s.callback(LOG.append, 1); s.callback(LOG.append, 2); s.push(lambda *a: LOG.append(3))
return x + 1, LOG[-3:]
# copy of a dict
c = copy.deepcopy(CONFIG); c["names"].append("c"); return x + c["lr"], CONFIG["names"], c
# sys modules
return x + 1, "math" in sys.modules, sys.modules["math"] is math
# import module
m = importlib.import_module("math"); return x + m.pi, m is math
# getenv
return x + 1, os.getenv("P4_NOPE"), os.getenv("P4_NOPE", "z"), os.environ["HOME"] == os.getenv("HOME")
# regex
m = LINE.match("ab=12"); return x + int(m["v"]), m.group("k"), m.span(), re.sub(r"\d", "#", "a1b2"), re.findall(r"\w", "a b"), LINE.search("  q=3").start(), re.split(",", "a,b"), bool(re.fullmatch("a+", "aa")), LINE.match("no")
# regex names of parameters
names = [n for n, _ in M.named_parameters() if re.search(r"weight$", n)]; return x + len(names), names
# fractions
f = fractions.Fraction(1, 3) + fractions.Fraction(1, 6); return x + float(f), f, f.numerator
# logging
logger.info("step %d", 3); logger.warning("w") if False else None; return x + 1, logger.isEnabledFor(logging.DEBUG), logger.getEffectiveLevel()
# textwrap
return x + 1, textwrap.dedent("  a\n  b"), textwrap.shorten("aaa bbb ccc", 8)
# counters and format
c = collections.Counter("abca"); return x + c["a"], c.most_common(1), f"{'x':>4}|{3.14159:.2f}|{1000000:,}", "%s-%05.1f" % ("a", 2.5)
# path
import os.path, pathlib
return x + 1, os.path.join("a", "b"), os.path.basename("a/b.txt"), pathlib.PurePosixPath("a") / "b", pathlib.Path("a/b.txt").suffix, os.path.splitext("a.b")
# simple namespace
n = types.SimpleNamespace(a=1); n.b = x + 1; return n.b, n.a, vars(n).keys() == {"a", "b"}
# suppress and nullcontext
with contextlib.suppress(KeyError): {}["a"]
with contextlib.nullcontext(3) as q: pass
return x + q
# chain map
c = collections.ChainMap({"a": 1}, {"b": 2}); return x + c["b"], dict(c), "a" in c
# ordered dict
o = collections.OrderedDict(a=1, b=2); o.move_to_end("a"); return x + 1, list(o), o.popitem(last=False)
# str methods
return x + 1, "a-b".translate({45: "_"}), "aXb".casefold(), "abc".encode("utf-8").hex(), "%x" % 255, int("ff", 16), "a\tb".expandtabs(2), "ab".zfill(4), "é".isalpha(), "x".center(5, "*")
# int methods
return x + (5).bit_length(), (255).to_bytes(2, "big"), int.from_bytes(b"\x01\x00", "big"), (3.5).is_integer(), (2.5).as_integer_ratio(), float.fromhex("0x1p3"), divmod(-7, 2), round(2.675, 2), pow(3, -1, 7)
''')

BREAKS = table(r'''
# bytearray
b = bytearray(b"abc"); b[0] = 65; b += b"d"; b.append(66); return x + len(b), bytes(b), b
# memoryview
m = memoryview(b"abcd"); return x + m[1], bytes(m[1:3]), len(m)
# stringio
s = io.StringIO(); s.write("a"); print("b", 1, file=s); return x + 1, s.getvalue()
# stringio escapes
s = io.StringIO(); s.write("a"); y = x + 1; s.write("b"); return y, s.getvalue(), s.tell()
# bytesio
s = io.BytesIO(); s.write(b"abc"); s.seek(1); return x + 1, s.read()
# redirect stdout
s = io.StringIO()
with contextlib.redirect_stdout(s): print("in", x.shape)
print("out"); return x + 1, s.getvalue()
# cached property
a = Lazy(); return x + 1, a.v == a.v, vars(a) != {}
# locals and globals
q = 3; a = sorted(locals()); b = "M" in globals(); return x + 1, a, b, sorted(vars(Pt(1, 2))), dir(Pt(1, 2))[-1]
# eval and exec
q = 3; a = eval("q + 1", {"q": q}); ns = {}; exec("z = 4", ns); return x + a, ns["z"]
# format exc
try: 1 / 0
except ZeroDivisionError: a = traceback.format_exc().splitlines()[-1]
return x + 1, a
# environ
os.environ["P4_TEST"] = "1"; a = os.environ.get("P4_TEST"), os.environ.get("P4_NONE", "d"), "P4_TEST" in os.environ; del os.environ["P4_TEST"]; return x + 1, a
# time
t = time.time(); z = x + 1; d = time.time() - t; return z, d >= 0, type(d).__name__
# perf counter
t = time.perf_counter(); z = x + 1; d = time.perf_counter() - t; LOG.append(d >= 0); return z, d > -1, isinstance(d, float)
# time in a context
with Timer() as t: z = x * 2
return z, t.d >= 0
# monotonic and sleep
t = time.monotonic(); time.sleep(0); return x + 1, time.monotonic() >= t
# hashlib
return x + 1, hashlib.sha256(b"abc").hexdigest()[:8], hashlib.md5("é".encode()).hexdigest()[:4]
# json error
try: json.loads("{")
except json.JSONDecodeError as e: return x + 1, str(e)
# template
return x + 1, string.Template("$a b").substitute(a=3), string.Template("$a").safe_substitute(), string.ascii_lowercase[:3], string.capwords("a b")
# decimal
d = decimal.Decimal("1.10") + decimal.Decimal(2); return x + float(d), str(d), d
# lock
with LOCK: z = x + 1
return z, LOCK.locked()
# rlock
with threading.RLock(): z = x + 1
return z, threading.current_thread().name
# event and local
e = threading.Event(); e.set(); return x + 1, e.is_set()
# random seeded
r = random.Random(3); return x + r.random(), r.randint(0, 9), r.choice([1, 2])
# random global
random.seed(4); a = random.random(); random.shuffle(l := [1, 2, 3]); return x + a, l, random.random()
# match classes
def m(v):
    match v:
        case Pt(0, b): return ("zero", b)
        case Pt(a, b) if a > b: return ("gt", a)
        case Pt(a=aa): return ("any", aa)
        case {"k": [1, *r], **o}: return (r, o)
        case [Pt(a, _), *_]: return ("list", a)
        case str() as s: return s
        case 1 | 2.0: return "num"
        case None: return "none"
        case _: return "rest"
return x + 1, [m(v) for v in (Pt(0, 1), Pt(3, 1), Pt(1, 3), {"k": [1, 2, 3], "z": 1}, [Pt(4, 5)], "s", 2, None, 7.5, b"b")]
# json
s = json.dumps({"a": [1, 2.5, None, True], "b": "c"}, sort_keys=True); return x + 1, s, json.loads(s)["a"][1], json.dumps([1], indent=1)
# heapq
h = [3, 1, 2]; heapq.heapify(h); heapq.heappush(h, 0); a = heapq.heappop(h); return x + a, h, heapq.nlargest(2, h), heapq.nsmallest(1, h), heapq.heappushpop(h, 9), heapq.heapreplace(h, 5), h
# datetime
d = datetime.datetime(2020, 1, 2); return x + d.year, d.isoformat(), str(d + datetime.timedelta(days=1)), d.strftime("%Y"), datetime.timedelta(seconds=3).total_seconds()
# struct and base64
return x + struct.unpack("<I", struct.pack("<I", 7))[0], base64.b64encode(b"ab"), struct.calcsize("<IQ")
# meters
class Avg:
    def __init__(self): self.s, self.n = 0.0, 0
    def add(self, v): self.s += v; self.n += 1
    @property
    def mean(self): return self.s / max(self.n, 1)
a = Avg(); a.add(3); a.add(4); return x + a.mean, f"{a.mean:.2f}"
# itertools and operator
return x + 1, list(itertools.chain([1], [2])), list(itertools.combinations("abc", 2)), operator.attrgetter("a.b")(types.SimpleNamespace(a=types.SimpleNamespace(b=3))), list(itertools.pairwise([1, 2, 3])), list(itertools.batched([1, 2, 3], 2)) if hasattr(itertools, "batched") else 0
# bisect
l = [1, 3, 5]; bisect.insort(l, 4); return x + bisect.bisect(l, 3), bisect.bisect_left(l, 3), l, bisect.bisect_right([1, 2], 2, key=lambda v: v)
# statistics
return x + statistics.mean([1, 2, 3]), statistics.median([3, 1, 2]), round(statistics.stdev([1, 2, 4]), 3)
''')


test_one_graph, test_right_with_breaks = make_tests(ONE_GRAPH, BREAKS, SETUP)


def test_json_follows_what_it_is_of() -> None:
    settings = {"lr": 0.5, "names": ["a"]}

    def f(x: torch.Tensor) -> object:
        return x + 1, json.dumps(settings)

    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager")
    for change in (lambda: None, lambda: settings["names"].append("b"), lambda: settings.update(lr=2)):
        change()
        assert compiled(torch.ones(2))[1] == f(torch.ones(2))[1]


def test_print_to_another_file() -> None:
    files = [io.StringIO(), io.StringIO()]

    def f(x: torch.Tensor, file: io.StringIO) -> torch.Tensor:
        print("size", x.shape[0], file=file)
        return x + 1

    dynamo.reset()
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for file in (*files, files[0]):
        compiled(torch.ones(2), file)
    assert [file.getvalue() for file in files] == ["size 2\n" * 2, "size 2\n"]
