"""More constructs for random programs: operator methods, generators with send, matching, stacks of managers,
closures that change, exceptions with `finally` and `return`, views of dicts and tensors, state of another module.

`generate_wide` draws from the tables of `program.py` and these; a program carries `PRELUDE_WIDE` with it.
"""

from __future__ import annotations

from tests.fuzz.program import BLOCKS, BOOL, KINDS, SIMPLE, Chooser, Generator, Program, Stmt

PRELUDE_WIDE = '''
import enum, types

OTHER = types.ModuleType("other")
OTHER.level, OTHER.items, OTHER.table = 1, [], {}


class Vec:
    made = 0

    def __init__(self, n):
        self.n = n
        self._w = 0

    @property
    def w(self):
        return self._w + 1

    @w.setter
    def w(self, value):
        EVENTS.append(("w", value))
        self._w = value

    @w.deleter
    def w(self):
        self._w = -1

    def __add__(self, o):
        if isinstance(o, Vec):
            return Vec(self.n + o.n)
        return Vec(self.n + o) if isinstance(o, int) else NotImplemented

    def __radd__(self, o):
        return ("radd", o) if isinstance(o, (int, str, list)) else NotImplemented

    def __iadd__(self, o):
        self.n = self.n + 1
        return self

    def __mul__(self, o):
        return self.n * o

    __rmul__ = __mul__

    def __eq__(self, o):
        return self.n == o.n if isinstance(o, Vec) else NotImplemented

    def __lt__(self, o):
        return self.n < o.n if isinstance(o, Vec) else NotImplemented

    def __hash__(self):
        return 5

    def __bool__(self):
        return self.n != 0

    def __len__(self):
        return 2

    def __iter__(self):
        yield self.n
        yield self.w

    def __contains__(self, o):
        EVENTS.append("contains")
        return o == self.n

    def __getitem__(self, k):
        if k == 9:
            raise IndexError("nine")
        return (self.n, k) if not isinstance(k, slice) else (k.start, k.stop, k.step)

    def __setitem__(self, k, v):
        self.n = v

    def __delitem__(self, k):
        EVENTS.append(("del", k))

    def __call__(self, *a, **k):
        return (self.n, len(a), sorted(k))

    def __format__(self, spec):
        return f"<{spec}>"

    def __repr__(self):
        return f"Vec({self.n})"

    def __index__(self):
        return 1

    def __neg__(self):
        return Vec(0)

    def __getattr__(self, name):
        if name == "lost":
            raise AttributeError("lost it")
        if name.startswith("__"):
            raise AttributeError(name)
        return ("got", name)


class Sub(Vec):
    __match_args__ = ("n", "w")

    def __radd__(self, o):
        return ("sub", o if isinstance(o, int) else 0)

    def __add__(self, o):
        return super().__add__(o)

    def __setattr__(self, name, value):
        if name == "watched":
            EVENTS.append(("set", name))
        super().__setattr__(name, value)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Items(list):
    def push(self, v):
        self.append(v)
        return self


class Default(dict):
    def __missing__(self, key):
        EVENTS.append(("missing", key))
        return key


class Coded(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


def talk(n):
    total = 0
    try:
        while total < n:
            got = yield total
            EVENTS.append(("got", got))
            total += got if isinstance(got, int) else 1
    except KeyError as e:
        EVENTS.append(("caught", e.args))
        yield "after"
    finally:
        EVENTS.append("end")
    return total


def chained(n):
    r = yield from talk(n)
    yield ("r", r)


def early(n):
    try:
        if n > 2:
            return "early"
        if n == 1:
            raise Coded(n)
        return "late"
    except Coded as e:
        return e.code
    finally:
        EVENTS.append(("finally", n))


def overrides(n):
    for i in range(3):
        try:
            if i == n:
                raise Oops(i)
            continue
        finally:
            if i == 1:
                break
    try:
        return n
    finally:
        if n == 0:
            return "over"


def pair_of_closures(n):
    def get():
        return n

    def put(v):
        nonlocal n
        n = v

    return get, put


def describe(e):
    return (type(e).__name__, e.args, type(e.__cause__).__name__, type(e.__context__).__name__, e.__suppress_context__,
            getattr(e, "__notes__", None))
'''

TENSOR = (
    "({T}.view(3, 2) + {N}).view(2, 3)", "{T}[:, 1:].sum() + {T}", "{T}.clone().add_({N})",
    "torch.add({T}, {T}, alpha={N})", "{T} if {A} else {T}", "[q for q in ({T}, {T})][-1]", "({T}, {T})[{N} % 2]",
    "{{'k': {T}}}.get('k')", "(Vec({N}) * {T})", "({T} * Vec({N}))", "next(iter([{T}]))", "max({T}, {T}, key=lambda q: {N})",
    "functools.reduce(lambda p, q: p + q, ({T}, {T}))", "{T}.expand(2, 3) + 1", "{T}.unsqueeze(0).squeeze(0)",
)
INT = (
    "Vec({N}).w", "len(Vec(1))", "early({N})", "overrides({N} % 3)", "OTHER.level", "len(OTHER.items)", "int({N} > 2)",
    "sum(v for v in (1, {N}))", "next(talk(3))", "{N} ^ 1", "-{N}", "[5, 6, 7][Vec(1)]", "({N} and 3)", "({N} or 4)",
    "len({{'a': 1, 'b': {N}}}.keys() & {{'a', 'z'}})", "len(set({L}[:0]) | {{1, {N}}})", "round({N} / 3)", "Default(a=1)[{N}]",
    "(lambda *a, k={N}, **r: len(a) + k + len(r))(1, 2, z={N})", "{N} if {A} is None else 2", "collections.Counter('aab')['a']",
    "len([1 for _ in itertools.islice(itertools.count(), {N} % 5)])", "len(Items([1, {N}]).push(2))", "Color.RED.value",
    "sum(itertools.takewhile(lambda q: q < 3, [1, {N}, 5]))", "operator.itemgetter(1)([1, {N}])", "len(repr({S}))",
)
LIST = (
    "[*Vec({N})]", "list({D}.keys())", "list({D}.items())[:1]", "Items({L})[:1]", "list(talk({N} % 3))", "list(chained(2))",
    "[(p, q) for p in range(2) for q in (p, {N}) if q]", "[[p * q for q in range(p)] for p in range(3)]",
    "sorted({{'b': 1, 'a': {N}}})", "[a := {N}, a + 1]", "list(itertools.product('ab', [{N}]))", "list(collections.deque([1, {N}, 3], maxlen=2))",
    "[v for k, v in sorted({{'b': 1, 'a': {N}}}.items())]", "sorted([Vec(3), Vec({N})])", "{L} * 2", "list(map(lambda p, q: (p, q), {L}, [1, 2]))",
    "[k for k, g in itertools.groupby([1, 1, {N}])]", "list(itertools.zip_longest({L}[:2], [1], fillvalue=0))", "list(itertools.accumulate([1, {N}], operator.mul))",
)
DICT = (
    "{{k: v for k, v in zip('ab', ({N}, {A}))}}", "dict({D}.items())", "Default(q={N})", "OTHER.table", "dict(a=1, **{{'b': {N}}})",
    "{{**{D}, **{{'y': {N}}}}}", "collections.defaultdict(int, a={N})", "{{(1, {N}): 2, 'a': {A}}}",
)
STR = (
    "f'{{{N}:>4}}|{{{S}:<3}}|{{{N}!s}}'", "f'{{{N}=}}'", "f'{{Vec({N}):q}}{{Vec(1)!r}}'", "'{{}}-{{k}}'.format({N}, k={S})", "'%r' % ({S},)",
    "repr([1, {N}, {S}])", "str({{'a': {N}}})", "{S}.join('xy')", "{S}.partition('b')[0]", "str(Color.RED)", "Color(1).name", "{S}[::-1]",
    "f'{{{S}:{{5}}}}'", "str((1, {N}))", "str(None) + str(1.5)", "{S}.encode().decode()", "Oops({N}).args.__repr__()",
)
BOX = ("Vec({N})", "Sub({N})", "Sub({N})", "Vec({A})")
MORE_BOOL = (
    "Vec({N}) == Vec({N})", "Vec(1) < Vec({N})", "{N} in Vec({N})", "Vec({N}) is not None", "bool(Vec({N}))", "{L} == {L}", "{D} == {D}",
    "{A} == {A}", "{A} != {A}", "{A} in [1, {N}]", "Color.RED is Color(1)", "isinstance({A}, (int, Vec))", "hasattr(Vec(1), 'lost')", "{S} < 'm'", "(1, {N}) < (1, 2)",
)
MORE_SIMPLE = (
    "vec = Vec({N}); vec.w = {N}; acc.append(vec.w); del vec.w; acc.append(vec.w)", "acc.append(Vec({N}) + {N})", "acc.append({N} + Vec({N}))",
    "acc.append([1] + Vec({N}))", "acc.append(Vec({N}) + Sub({N}))", "acc.append({S} + Vec(1))", "acc.append(Vec(1) + {A})", "acc.append(2.5 + Vec(1))",
    "vec = Vec({N}); alias = vec; vec += {A}; acc.append((vec, alias is vec))", "vec = Vec(1); vec[{N}] = {A}; acc.append(vec[1:2]); del vec['k']", "acc.append(Vec({N})[9])",
    "acc.append(Vec({N})({A}, *{L}, k={N}, **{{'z': 1}}))", "acc.append(Vec({N}).anything)", "acc.append(getattr(Vec(1), 'lost', {N}))", "acc.append(Vec(1).lost)",
    "sub = Sub({N}); sub.watched = {A}; acc.append(sub)", "box.extra = Vec({N}); box.extra.w = 3", "p, q = Vec({N}); acc.append((p, q))", "p, *q = {L}; acc.append(q)", "(p, q), *r = [(1, {N}), {A}]; acc.append(r)",
    "g = talk({N}); acc.append(next(g)); acc.append(g.send({N})); acc.append(g.send(None))", "g = talk(9); next(g); acc.append(g.throw(KeyError({N}))); g.close()", "g = talk(9); next(g); g.close(); acc.append(list(g))",
    "g = (EVENTS.append(q) or q for q in [1, 2, {N}]); acc.append(next(g)); acc.append(2 in g); acc.append(list(g))", "g = gen(5, {N}); acc.append(next(g)); graph_break(); acc.append(g.send({N}))", "acc.append(zip({L}, talk(3)).__next__())",
    "get, put = pair_of_closures({N}); put({A}); acc.append(get())", "get, put = pair_of_closures({N}); acc.append(get); put(3); box.extra = get", "get, put = pair_of_closures(t); put({T}); t = get()",
    "fs = [lambda v, i=i: v + i for i in range(3)]; acc.append([f_(1) for f_ in fs])", "fs = [lambda: i_ for i_ in range(3)]; acc.append([f_() for f_ in fs])",
    "OTHER.level += {N}", "OTHER.items.append({A})", "OTHER.table['k'] = {A}", "OTHER.fresh = {N}; acc.append(OTHER.fresh); del OTHER.fresh", "OTHER.level = {A}",
    "global LATE; LATE = {N}; acc.append(LATE)", "keys = d.keys(); d['kk'] = {N}; acc.append(list(keys))", "acc.append(d.keys() - {{'a'}} == {{'k'}})", "acc.append(list(reversed(d)))", "acc.append(('a', 1) in d.items())",
    "ss = {{1, 2, {N}}}; ss.add({N}); ss |= {{7}}; ss.discard(1); acc.append(sorted(ss, key=repr))", "ss = {{1}}; tt = ss; ss |= {{2}}; ss -= {{1}}; acc.append((tt, tt is ss))", "acc.append({{1, 2}} ^ {{2, {N}}})", "acc.append(frozenset([{N}]) | {{1}})",
    "dq = collections.deque([1, 2, {N}]); dq.rotate(1); dq.appendleft({A}); acc.append(dq)", "lst *= 2", "al = lst; al += [{A}]; acc.append(al is lst)", "lst.sort(key=lambda q: str(type(q)))", "lst[::2] = lst[::2]", "del lst[{N} % 2:]", "lst[-1], lst[0] = lst[0], lst[-1]",
    "acc.append(lst.index({N}))", "lst.remove({N})", "acc.append(lst.count({N}))", "lst[:] = [{A}, {A}]", "acc.append(lst.copy() is lst)", "acc.append(sorted(lst, key=repr)[:1])",
    "print('p', {N}, {S}, sep='-')", "print({S}, end='|')", "print(f'{{{N}:03d}}', [1, {N}], ({S}, None))", "EVENTS.extend([{N}, {S}])", "EVENTS[:] = EVENTS[-2:]",
    "v = t[0]; v += 1; acc.append(v)", "v = x.view(6); w_ = v[2:4]; w_.mul_(2); acc.append(x.sum())", "x[0, 1] = {N}", "x[:, 0] += 1", "y.t()[1].add_({N})", "t = t.clone(); u_ = t.view(3, 2); u_.add_(1); t[1] *= 2", "x.copy_({T})", "z_ = torch.empty(2, 3); torch.add(x, {N}, out=z_); acc.append(z_)", "al = x; al += {N}; acc.append(al is x)", "x = x + 1", "t = x; t = t.detach(); t.add_(1)", "a_, b_ = x.unbind(0); a_.add_(1); acc.append(b_)", "s_ = x.split(1, 1)[1]; s_.zero_()",
    "acc.append(Default(a=1)['zz'])", "it = Items([{N}]); it.push({A}).push(2); acc.append(it)", "acc.append(Color('b'))", "acc.append(Color({N}))", "acc.append([c.name for c in Color])", "acc.append(functools.partial(Vec, {N})())",
    "acc.append(early({N}))", "acc.append(overrides({N}))", "e_ = Coded({N}, {S}); e_.add_note('n'); acc.append(describe(e_))", "acc.append(str(Coded({N}))); acc.append(repr(Oops({S})))", "raise Coded({N})", "setattr(box, 'd' + 'yn', {A}); acc.append(vars(box)['dyn'])", "delattr(box, 'extra')", "box.__dict__['raw'] = {N}", "acc.append(sorted(vars(box)))", "box2 = box; box2.value = {N}; acc.append(box2 is box)",
    "del acc[:]", "acc = acc + [{A}]", "k, n = n, k", "n += 1", "s += 'z'", "s = {S}", "d = {D}", "d |= {{'m': {N}}}", "del d", "acc.append(locals().get('n')) if False else None", "acc.append(a_none := None)", "acc.append(1 if {BOOL} else 2 if {BOOL} else 3)", "acc.append({BOOL} and {A})", "acc.append({BOOL} or {A})", "acc.append(not {BOOL})", "acc.append([*{L}, *{S}])", "acc.append({{*{S}}} == set({S}))",
)

WIDE_KINDS = {**KINDS, "T": KINDS["T"] + TENSOR, "N": KINDS["N"] + INT, "L": KINDS["L"] + LIST,
              "D": KINDS["D"] + DICT, "S": KINDS["S"] + STR, "B": KINDS["B"] + BOX}


class WideGenerator(Generator):
    """Draws from all tables, and has blocks of its own."""

    kinds = WIDE_KINDS
    simple = SIMPLE + MORE_SIMPLE + MORE_SIMPLE
    conditions = BOOL + MORE_BOOL
    blocks = (*BLOCKS, "finally_block", "stack_block", "closure_block", "generator_block", "match_wide", "handler_block", "loop_else_block",
              "class_block", "star_block")

    def finally_block(self, depth: int) -> Stmt:
        """Leaving a loop or the function through `finally`."""
        i = self.fresh("f")
        jump = self.choose.pick(("break", "continue", "raise Oops('f')", "return 'fin'", "pass"))
        last = self.choose.pick(("EVENTS.append('fin')", "acc.append({N})", "break", "graph_break()"))
        inner = Stmt("try:", (*self.body(depth), Stmt(f"if {self.condition()}:", (Stmt(jump),))),
                     (("finally:", (Stmt(self.fill(last, 1)),)),))
        return Stmt(f"for {i} in range(2):", (inner, Stmt(f"acc.append({i})")))

    def stack_block(self, depth: int) -> Stmt:
        """An ExitStack with callbacks and managers."""
        c = self.fresh("es")
        steps = [self.choose.pick((f"{c}.callback(EVENTS.append, 'cb')", f"{c}.enter_context(Guarded('e'))", f"{c}.push(Guarded('p', {self.choose.pick(('True', 'False'))}))",
                                   f"{c}.enter_context(managed('m'))", f"kept = {c}.pop_all()", f"{c}.close()")) for _ in range(self.choose.integer(1, 3))]
        body = (*map(Stmt, steps), *self.body(depth))
        if self.choose.integer(0, 2) == 0:
            body += (Stmt("raise Oops('stack')"),)
        return Stmt(f"with contextlib.ExitStack() as {c}:", body)

    def closure_block(self, depth: int) -> Stmt:
        """A function that changes what it closes over, called around other statements."""
        name = self.fresh("cl")
        change = self.choose.pick(("k = k + p", "t = t * 2", "acc = acc + [p]", "k, t = p, t + 1"))
        names = ", ".join(part.strip() for part in change.split("=")[0].split(","))
        inner = (Stmt(f"nonlocal {names}"), *(self.body(depth) if self.choose.integer(0, 1) and depth < 3 else ()), Stmt(change), Stmt("return p"))
        inner = tuple(s for s in inner if "global" not in s.head)
        return Stmt("if True:", (Stmt(f"def {name}(p=1, *, z=2):", inner), Stmt(f"acc.append({name}())"), *self.body(depth), Stmt(f"acc.append({name}({self.expr('N', 1)}))")))

    def generator_block(self, depth: int) -> Stmt:
        """A local generator that is consumed in part."""
        name = self.fresh("lg")
        steps = (Stmt(f"got = yield {self.expr('A', 1)}"), Stmt("EVENTS.append(got)"), Stmt(f"yield ({self.expr('N', 1)}, t)"))
        body: tuple[Stmt, ...] = (Stmt("try:", steps, (("finally:", (Stmt("EVENTS.append('lg')"),)),)),)
        use = self.choose.pick((f"g_ = {name}(); acc.append(next(g_)); acc.append(g_.send(3))", f"acc.append(list({name}()))", f"for q_ in {name}(): acc.append(q_); break",
                                f"g_ = {name}(); acc.append(next(g_)); g_.close()", f"g_ = {name}(); box.extra = next(g_); acc.append(list(g_))"))
        return Stmt("if True:", (Stmt(f"def {name}():", body), Stmt(use)))

    def match_wide(self, depth: int) -> Stmt:
        subject = self.expr("A", 1)
        return Stmt(f"match {subject}:\n    case Sub(p, q):\n        acc.append(('sub', p, q))\n    case Vec(n=p) if p:\n        acc.append(('vec', p))\n    case Box(value=int(p) | str(p)):\n        acc.append(('box', p))\n"
                    "    case [] | {}:\n        acc.append('empty')\n    case [1, *rest]:\n        acc.append(rest)\n    case (p, q) if p == q:\n        acc.append('twice')\n    case {'a': 1, **rest}:\n        acc.append(rest)\n"
                    "    case 'abc' | 'lit' as p:\n        acc.append(p)\n    case torch.Tensor():\n        acc.append('tensor')\n    case Color.RED | None | True:\n        acc.append('const')\n    case _:\n        acc.append('rest')")

    def handler_block(self, depth: int) -> Stmt:
        """Handlers that look at the exception, with another one inside."""
        source = self.choose.pick(("raise Coded({N})", "t = raises(t, True)", "acc.append({A}.nothing)", "{L}[50]", "int('q')", "raise Oops(1) from KeyError(2)", "{{}}['q']", "torch.ones(2) @ torch.ones(3)"))
        after = self.choose.pick(("acc.append(describe(e) if not isinstance(e, RuntimeError) else 'rt')", "raise KeyError('again') from e", "raise", "e.add_note('x'); acc.append(type(e).__name__)", "graph_break(); acc.append(type(e).__name__)"))
        inner = Stmt("try:", (*self.body(depth), Stmt(self.fill(source, 1))), (("except (Coded, Oops, AttributeError, LookupError, ValueError, RuntimeError) as e:", (Stmt(after),)),))
        return Stmt("try:", (inner,), (("except KeyError as e2:", (Stmt("acc.append(describe(e2))"),)),))

    def class_block(self, depth: int) -> Stmt:
        """A class of the function, used and perhaps kept."""
        name = self.fresh("Cls")
        head = self.choose.pick((f"class {name}:", f"class {name}(Vec):", f"class {name}(Items):", f"class {name}(Oops):", f"@dataclasses.dataclass\nclass {name}:"))
        made = f"{name}({self.expr('N', 1)})" if "(Vec)" in head else f"{name}()"
        body = (Stmt(f"level: int = {self.expr('N', 1)}"), Stmt(f"kept = {self.expr('A', 1)}"), Stmt(self.choose.pick(("t2 = t + 1", "for lv in range(2): EVENTS.append(lv)", "graph_break()", "pass"))),
                Stmt(f"def twice(self, by={self.expr('N', 1)}):", (Stmt(self.choose.pick(("return self.level * by", "return super().__eq__(self), __class__ is type(self)", "self.seen = by; return (t, by)"))),)),
                Stmt("@property\ndef both(self):", (Stmt("return (self.level, type(self).__name__)"),)), Stmt("@classmethod\ndef named(cls):", (Stmt("return cls.__qualname__, cls.level"),)))
        use = self.choose.pick((f"acc.append(o_.twice()); acc.append({name}.named())", "acc.append(o_.both)", f"{name}.level += 1; acc.append(o_.level)", f"box.extra = o_; acc.append(type(o_) is {name})",
                                f"graph_break(); acc.append((o_.twice(), isinstance(o_, {name})))", "acc.append(o_.lost)"))
        return Stmt("if True:", (Stmt(head, body), Stmt(f"o_ = {made}"), *self.body(depth), Stmt(use)))

    def star_block(self, depth: int) -> Stmt:
        """Handlers of the parts of a group."""
        source = self.choose.pick(("raise ExceptionGroup('g', [Oops({N}), KeyError('k'), ExceptionGroup('i', [Oops(2), TypeError({N})])])", "raise Oops({N})", "{L}[50]", "pass", "raise ExceptionGroup('h', [ValueError({S})]) from KeyError(1)"))
        first = self.choose.pick(("acc.append(repr(e.exceptions))", "raise", "raise e", "raise TypeError('new')", "acc.append([repr(p) for p in e.split(Oops)])", "graph_break(); acc.append(e.message)", "e.add_note('n')"))
        second = self.choose.pick(("acc.append(len(e2.exceptions))", "raise", "raise KeyError(3) from e2", "graph_break(); raise"))
        inner = Stmt("try:", (*self.body(depth), Stmt(self.fill(source, 1))), (("except* Oops as e:", (Stmt(first),)), ("except* (KeyError, IndexError) as e2:", (Stmt(second),))))
        return Stmt("try:", (inner,), (("except Exception as e3:", (Stmt("acc.append((repr(e3), repr(e3.__context__), repr(e3.__cause__)))"),)),))

    def loop_else_block(self, depth: int) -> Stmt:
        i = self.fresh("e")
        body = (*self.body(depth), Stmt(f"if {self.condition()}:", (Stmt("break"),)))
        return Stmt(f"for {i}, q_ in enumerate({self.expr('L', 1)}[:3]):", body, (("else:", self.body(depth)),))

    def program(self) -> Program:
        program = super().program()
        return Program(program.body, program.result, PRELUDE_WIDE)


def generate_wide(choose: Chooser) -> Program:
    return WideGenerator(choose).program()
