"""Random small Python programs over the constructs that the evaluator models.

A `Program` is a tree of statements with the text of helper definitions; `Program.source()` prints it and
`Program.without(path)` drops one statement (for shrinking). Choices come through `Chooser`, so
that one generator serves seeds (`random.Random`) and hypothesis' shrinking draws alike.

The programs are closed: they see only their arguments (two tensors, a list, a dict, an object, an
int, a string), module globals of their own, and the standard pieces in PRELUDE.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")

PRELUDE = '''
import contextlib, dataclasses, functools, itertools, collections, math, operator
import torch

EVENTS = []
COUNT = 0
SHARED = [1, 2, 3]
TABLE = {"a": 1, "b": torch.ones(2, 3)}


class Box:
    kind = "box"

    def __init__(self, value, extra=None):
        self.value = value
        self.extra = extra

    def bump(self, by=1):
        self.value = self.value + by
        return self

    @property
    def double(self):
        return self.value * 2

    @classmethod
    def make(cls, value):
        return cls(value, extra="made")

    @staticmethod
    def add(a, b):
        return a + b

    def __call__(self, x):
        return x + self.value

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return self.value

    def __eq__(self, other):
        return isinstance(other, Box) and type(self.value) is type(other.value) is int and self.value == other.value

    __hash__ = None


class SubBox(Box):
    kind = "sub"

    def __init__(self, value):
        super().__init__(value)
        self.tags = []

    def bump(self, by=2):
        self.tags.append(by)
        return super().bump(by)

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)


@dataclasses.dataclass
class Pair:
    left: object
    right: object = 5
    rest: list = dataclasses.field(default_factory=list)


Point = collections.namedtuple("Point", "u v")


class Guarded:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        EVENTS.append(("enter", self.name))
        return self

    def __exit__(self, kind, value, tb):
        EVENTS.append(("exit", self.name, kind.__name__ if kind else None))
        return self.swallow


@contextlib.contextmanager
def managed(name):
    EVENTS.append(("open", name))
    try:
        yield name
    finally:
        EVENTS.append(("close", name))


class Oops(ValueError):
    pass


def gen(n, x):
    for i in range(n):
        got = yield x + i
        if got:
            x = x * 2
    return x


def delegate(n, x):
    last = yield from gen(n, x)
    yield last


def helper(a, b=2, *rest, scale=1, **options):
    return a * scale + b + len(rest) + len(options)


def breaker(x):
    y = x + 1
    graph_break()
    return y * 2


def deep(x, n):
    if n > 0:
        return deep(x + n, n - 1) * 2
    return breaker(x)


def raises(x, flag):
    if flag:
        raise Oops("asked for")
    return x - 1


def counter():
    n = 0

    def step(by=1):
        nonlocal n
        n += by
        return n

    return step
'''


class Chooser(Protocol):
    def pick(self, items: Sequence[T]) -> T: ...

    def integer(self, low: int, high: int) -> int: ...


@dataclass
class SeedChooser:
    """Choices from a seed: the same seed gives the same program on each Python version."""

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.rng.randrange(len(items))]

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)


@dataclass
class DrawChooser:
    """Choices from hypothesis' `data` strategy, which shrinks them."""

    draw: Any

    def pick(self, items: Sequence[T]) -> T:
        from hypothesis import strategies as st

        return self.draw(st.sampled_from(items))

    def integer(self, low: int, high: int) -> int:
        from hypothesis import strategies as st

        return self.draw(st.integers(low, high))


@dataclass(frozen=True)
class Stmt:
    """A statement: `head` is its text (one line, or the header of a block), `body` and further
    `clauses` (header, body) what it contains."""

    head: str
    body: tuple[Stmt, ...] = ()
    clauses: tuple[tuple[str, tuple[Stmt, ...]], ...] = ()

    def lines(self, indent: int) -> list[str]:
        pad = "    " * indent
        out = [pad + line for line in self.head.split("\n")]
        if self.head.endswith(":"):
            out += block(self.body, indent + 1)
        for header, body in self.clauses:
            out.append(pad + header)
            out += block(body, indent + 1)
        return out


def block(body: tuple[Stmt, ...], indent: int) -> list[str]:
    lines = [line for stmt in body for line in stmt.lines(indent)]
    return lines or ["    " * indent + "pass"]


@dataclass(frozen=True)
class Program:
    """prelude: definitions that the program needs besides PRELUDE."""

    body: tuple[Stmt, ...]
    result: str
    prelude: str = ""

    def source(self) -> str:
        lines = ["def f(x, y, lst, d, box, n, s):", "    global COUNT", "    t = x + 0; k = n; acc = []"]
        return "\n".join([*lines, *block(self.body, 1), f"    return {self.result}", ""])

    def size(self) -> int:
        return sum(count(stmt) for stmt in self.body)

    def smaller(self) -> list[Program]:
        """Every program with one statement less (whole blocks first, then single statements)."""
        return [replace(self, body=body) for body in drops(self.body)]


def count(stmt: Stmt) -> int:
    return 1 + sum(map(count, stmt.body)) + sum(count(s) for _, b in stmt.clauses for s in b)


def drops(body: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    out = [body[:i] + body[i + 1 :] for i in range(len(body))]
    for i, stmt in enumerate(body):
        if stmt.body and not stmt.head.startswith("try"):
            out.append(body[:i] + stmt.body + body[i + 1 :])
        out += [body[:i] + (replace(stmt, body=b),) + body[i + 1 :] for b in drops(stmt.body)]
        for j, (header, clause) in enumerate(stmt.clauses):
            for b in drops(clause):
                clauses = stmt.clauses[:j] + ((header, b),) + stmt.clauses[j + 1 :]
                out.append(body[:i] + (replace(stmt, clauses=clauses),) + body[i + 1 :])
    return out


# Expressions and simple statements by kind. {T} a tensor, {N} an int, {L} a list, {D} a dict, {B} a box,
# {S} a string, {A} any value.
TENSOR = (
    "x", "y", "t", "t", "{T} + {T}", "{T} * {N}", "{T} - 1.5", "-{T}", "torch.relu({T})", "{T}.sin()",
    "torch.where({T} > 0, {T}, {T})", "{T}.clone()", "helper({T}, {N})", "helper({T}, 1, 2, scale={N}, z=3)",
    "breaker({T})", "Box({T}).bump().value", "Box.make({T}).double", "Box.add({T}, {T})", "SubBox({T}).bump().value",
    "({T} if n > 2 else {T})", "functools.reduce(operator.add, [{T}, {T}, {T}])", "sum([{T}, {T}])",
    "torch.stack([{T}, {T}]).sum(0)", "torch.cat([{T}, {T}], 0)[:2]", "{T}.view(-1).reshape(2, 3)",
    "{T}.t().contiguous().t()", "raises({T}, False)", "next(gen(2, {T}))", "list(delegate(2, {T}))[-1]",
    "(lambda v, w={N}: v + w)({T})", "Box({N})({T})", "deep({T}, 1)", "dict(a={T})['a']",
    "[{T}, {T}][{N} % 2]", "max([{T}], key=lambda v: 1)", "functools.partial(helper, {T})({N})",
    "Point({T}, {N}).u", "Pair({T}).left", "torch.nn.functional.softmax({T}, -1)", "{T}.to(torch.float64).float()",
    "(box.value if isinstance(box.value, torch.Tensor) else {T})", "TABLE['b'] * {T}", "math.sqrt({N} + 9) * {T}",
    "{T}.mean() + {T}", "torch.zeros_like({T}) + {N}", "{T}.detach()",
)
INT = (
    "0", "1", "2", "3", "n", "k", "len({L})", "len({D})", "{N} + {N}", "{N} * 2", "abs({N} - 4)", "({N} % 3)",
    "{T}.shape[0]", "{T}.dim()", "len({S})", "sum(range({N}))", "max({N}, 2)", "COUNT", "len(SHARED)",
    "int({T}.numel())", "(1 if {N} > 2 else 5)", "len(box)", "hash({S}) * 0", "sum(1 for q in range(3) if q)",
    "len({{1, {N}, 2}})", "{N} // 2", "int(2.5)", "[i for i in range(5)][{N} % 5]", "divmod({N}, 3)[1]",
    "len(list(zip({L}, {S})))", "isinstance({A}, int) + 0", "len(str({N}))", "min([{N}, 7])", "{N} & 3",
)
LIST = (
    "lst", "acc", "[{N}, {T}]", "[{N} for q in range(2)]", "list({L})", "{L}[:2]", "{L} + [{N}]", "[*{L}, {N}]",
    "list({D}.values())", "sorted([3, {N}, 1])", "list(range({N} % 4))", "list(map(str, [1, {N}]))",
    "list(enumerate([{N}]))", "[q * 2 for q in [1, {N}] if q]", "SHARED", "list(reversed([1, {N}]))",
    "list(itertools.chain([1], [{N}]))", "(lambda *a: list(a))({N}, {T})", "list(filter(None, [0, {N}]))",
)
DICT = (
    "d", "{{'a': {A}}}", "dict(d)", "{{**d, 'z': {N}}}", "{{q: {N} for q in 'ab'}}", "TABLE", "d.copy()",
    "collections.OrderedDict(a={N})", "dict(zip('ab', [1, {N}]))", "{{'a': 1}} | {{'b': {N}}}",
)
BOX = ("box", "box", "Box({A})", "SubBox({N})", "Box.make({A})", "Pair({A}, {A})")
STR = ("s", "'lit'", 'f"{{{N}}}-{{{S}!r}}"', "{S} + 'q'", "{S}.upper()", "','.join(['a', {S}])", "str({N})", "{S}[:2]",
       "box.kind", "type({A}).__name__", "{S}.replace('a', 'b')", "'%s|%d' % ({S}, {N})", "format({N}, '03d')")
BOOL = (
    "n > 1", "k < 3", "{N} == {N}", "len({L}) > 2", "'a' in {D}", "{A} is None", "isinstance({A}, torch.Tensor)",
    "not {N}", "lst is {L}", "{S}.startswith('a')", "1 < {N} < 5", "{N} in [1, 2, 3]", "hasattr(box, 'extra')",
    "bool({L})", "callable({A})", "any([{N}, 0])", "all(q for q in [1, {N}])", "{T} is {T}", "box == Box(2)",
)
KINDS = {"T": TENSOR, "N": INT, "L": LIST, "D": DICT, "B": BOX, "S": STR}

SIMPLE = (
    "t = {T}", "t = {T}", "t = {T}", "k = {N}", "t += {T}", "t = t * {N}", "acc.append({A})", "acc.append({T})",
    "lst.append({A})", "lst.insert(0, {N})", "lst[0] = {A}", "lst.extend({L})", "lst.pop()", "del lst[0]",
    "lst += [{N}]", "lst[1:2] = [{N}, {N}]", "lst.reverse()", "lst.clear()", "d['a'] = {A}", "d[{S}] = {A}", "d.update(q={A})",
    "d.pop('a', None)", "d.setdefault('w', {A})", "d.setdefault('w', []).append({N}) if 'w' not in d else None",
    "del d['a']", "box.value = {A}", "box.extra = {A}", "box.fresh = {A}", "setattr(box, 'via', {N})", "box.bump({N}) if isinstance(box.value, int) else None",
    "box.extra = box", "d['self'] = lst", "lst.append(d)", "COUNT += {N}", "COUNT = {N}", "SHARED.append({N})", "TABLE['c'] = {A}",
    "EVENTS.append({N})", "x.add_(1)", "t.mul_(2)", "t = t.clone(); t[0] = {N}", "y[0].add_({N})", "v = t.view(-1); v.add_(1)",
    "a, b = {N}, {T}; t = b + a", "a, *b = [1, 2, {N}]; acc.append(b)", "(k := {N})", "assert {BOOL}, 'no'",
    "acc.append([q + {N} for q in range(3)])", "acc.append({{q: {N} for q in range(2)}})", "acc.append({BOOL})",
    "step = counter(); step(); acc.append(step({N}))", "g = gen(3, {N}); acc.append(next(g)); acc.append(g.send(True))",
    "acc.append(list(delegate(2, {N})))", "graph_break()", "graph_break()", "t = deep(t, {N} % 3)", "t = breaker(t)", "acc.append(str({S}))", "acc.append(Pair({N}, {S}))",
    "acc.append(Point({A}, {N})._replace(u={N}))", "it = iter({L}); acc.append(next(it, None)); acc.append(list(it))",
    "acc.append(sorted([3, {N}, 2], key=lambda q: -q))", "acc.append(box.double if isinstance(box.value, int) else None)",
    "acc.append(getattr(box, 'nope', {N}))", "acc.append(box.nope)", "acc.append(d['nope'])", "acc.append(lst[{N}])", "acc.append(1 // {N})",
    "acc.append({S} * {N})", "acc.append(({A}, {A}))", "acc.append({{*[1, {N}]}} - {{2}})", "import math as m; acc.append(m.floor(2.5))",
    "acc.append(functools.reduce(lambda p, q: p + q, [1, {N}]))", "acc.append(t.shape)", "acc.append(t.dtype)", "acc.append(type(t) is torch.Tensor)",
    "acc.append(t.sum().item())", "acc.append(t.tolist())", "dq = collections.deque([1, {N}], maxlen=2); dq.append({N}); acc.append(list(dq))",
    "acc.append(list(itertools.accumulate([1, {N}])))", "dd = collections.defaultdict(list); dd['q'].append({N}); acc.append(dict(dd))",
    "acc.append(list(zip([1, 2], {L})))", "acc.append([*range({N} % 4)])", "acc.append(repr({N}))", "t = torch.where(t > {N}, t, -t)",
)


BLOCKS = ("if_block", "for_block", "while_block", "try_block", "with_block", "def_block", "return_block", "match_block")


@dataclass
class Generator:
    """Draws one program. depth bounds blocks, fuel the number of statements."""

    choose: Chooser
    fuel: int = 12
    names: int = 0
    in_loop: bool = False
    kinds: ClassVar[dict[str, tuple[str, ...]]] = KINDS
    simple: ClassVar[tuple[str, ...]] = SIMPLE
    conditions: ClassVar[tuple[str, ...]] = BOOL
    blocks: ClassVar[tuple[str, ...]] = BLOCKS

    def expr(self, kind: str, depth: int = 0) -> str:
        if kind == "A":
            kind = self.choose.pick("TTNNLDBSK")
            if kind == "K":
                return self.choose.pick(("None", "True", "2.5", "(1, 2)", "...", "b'q'"))
        table = self.kinds[kind]
        if depth >= 2:
            table = tuple(e for e in table if "{" not in e.replace("{{", ""))
        return self.fill(self.choose.pick(table), depth + 1)

    def fill(self, template: str, depth: int) -> str:
        out, i = [], 0
        while i < len(template):
            if template.startswith("{{", i) or template.startswith("}}", i):
                out.append(template[i])
                i += 2
            elif template[i] == "{":
                end = template.index("}", i)
                kind = template[i + 1 : end]
                if kind == "BOOL":
                    out.append(f"({self.fill(self.choose.pick(self.conditions), depth)})")
                else:
                    inner = self.expr(kind, depth)
                    out.append(inner if inner.isidentifier() or inner.isdigit() else f"({inner})")
                i = end + 1
            else:
                out.append(template[i])
                i += 1
        return "".join(out)

    def condition(self) -> str:
        if self.choose.integer(0, 3) == 0:
            return self.choose.pick(("t.sum() > 0", "(t > 0).any()", "x.mean() < y.mean()"))
        return self.fill(self.choose.pick(self.conditions), 1)

    def body(self, depth: int) -> tuple[Stmt, ...]:
        return tuple(self.stmt(depth) for _ in range(self.choose.integer(1, 3)))

    def stmt(self, depth: int) -> Stmt:
        self.fuel -= 1
        if depth >= 3 or self.fuel <= 0 or self.choose.integer(0, 2) > 0:
            return Stmt(self.fill(self.choose.pick(self.simple), 0))
        return getattr(self, self.choose.pick(self.blocks))(depth + 1)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def if_block(self, depth: int) -> Stmt:
        clauses = (("else:", self.body(depth)),) if self.choose.integer(0, 1) else ()
        return Stmt(f"if {self.condition()}:", self.body(depth), clauses)

    def for_block(self, depth: int) -> Stmt:
        i = self.fresh("i")
        domain = self.choose.pick(("range(3)", "[1, 2]", "list(d)", "enumerate('ab')", "zip([1, 2], (3, 4))", "d.copy().items()",
                                   "range(n % 4)", "gen(2, 1)", "(t, x)", "reversed([1, 2])", "lst[:2]", "itertools.count()"))
        before, self.in_loop = self.in_loop, True
        body = self.body(depth) + (Stmt(f"acc.append({i})"),)
        if domain == "itertools.count()":
            body += (Stmt(f"if {i} > 1:", (Stmt("break"),)),)
        elif self.choose.integer(0, 2) == 0:
            jump = self.choose.pick(("break", "continue"))
            body = (Stmt(f"if {self.condition()}:", (Stmt(jump),)),) + body
        self.in_loop = before
        clauses = (("else:", self.body(depth)),) if self.choose.integer(0, 3) == 0 else ()
        return Stmt(f"for {i} in {domain}:", body, clauses)

    def while_block(self, depth: int) -> Stmt:
        i = self.fresh("w")
        return Stmt(f"{i} = 0\nwhile {i} < {self.choose.integer(1, 3)}:", (Stmt(f"{i} += 1"), *self.body(depth)))

    def try_block(self, depth: int) -> Stmt:
        body = self.body(depth)
        if self.choose.integer(0, 1):
            body += (Stmt(self.choose.pick(("raise Oops('x')", "t = raises(t, True)", "acc.append([][1])",
                                            "raise KeyError(n) from Oops('cause')", "torch.add(t, torch.ones(7))"))),)
        clauses: list[tuple[str, tuple[Stmt, ...]]] = []
        if self.choose.integer(0, 3):
            name = self.choose.pick(("Oops", "Exception", "(KeyError, IndexError)", "ValueError", "RuntimeError"))
            handler = (Stmt("EVENTS.append(type(e).__name__)"), *self.body(depth))
            if self.choose.integer(0, 4) == 0:
                handler += (Stmt("raise"),)
            clauses.append((f"except {name} as e:", handler))
            if self.choose.integer(0, 2) == 0:
                clauses.append(("else:", self.body(depth)))
        if not clauses or self.choose.integer(0, 1):
            clauses.append(("finally:", self.body(depth)))
        return Stmt("try:", body, tuple(clauses))

    def with_block(self, depth: int) -> Stmt:
        what = self.choose.pick(("Guarded('g')", "Guarded('s', True)", "managed('m')", "torch.no_grad()",
                                 "contextlib.suppress(Oops, KeyError)", "contextlib.nullcontext(3)"))
        body = self.body(depth)
        if self.choose.integer(0, 3) == 0:
            body += (Stmt("raise Oops('in with')"),)
        return Stmt(f"with {what} as c{depth}:", body)

    def def_block(self, depth: int) -> Stmt:
        name = self.fresh("fn")
        head = self.choose.pick((f"def {name}(p, q=n):", f"def {name}(p, *q, **r):"))
        nonlocal_ = self.choose.pick(("acc.append(p)", "nonlocal k; k = k + 1", "nonlocal t; t = t + 1", "acc.append(k)"))
        inner = (Stmt(nonlocal_), Stmt("q2 = p"), Stmt("return p"))
        call = Stmt(f"acc.append({name}({self.expr('A', 1)}))")
        return Stmt("if True:", (Stmt(head, inner), *self.body(depth), call))

    def return_block(self, depth: int) -> Stmt:
        return Stmt(f"if {self.condition()}:", (*self.body(depth), Stmt(f"return ('early', {self.expr('A', 1)})")))

    def match_block(self, depth: int) -> Stmt:
        subject = self.expr("A", 1)
        return Stmt(f"match {subject}:\n    case int(q) if q > 1:\n        acc.append(('int', q))\n    case [first, *_]:\n"
                    "        acc.append(('seq', first))\n    case {'a': found}:\n        acc.append(('map', found))\n    case _:\n        acc.append('other')")

    def program(self) -> Program:
        body = tuple(self.stmt(0) for _ in range(self.choose.integer(2, 6)))
        result = self.choose.pick(("t", "t, acc", "t, acc, k", "{'t': t, 'acc': acc, 'lst': lst}", "[t, box, d]", "acc", "(t, x, y)", "locals().get('k'), t"))
        return Program(body, result)


def generate(choose: Chooser) -> Program:
    return Generator(choose).program()
