"""Objects of the program: classes, dataclasses, named tuples, caches, subclasses of tensors."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import typing
from typing import Any

import torch

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import program


@program("closures", "methods of a local class change what they close over", 197896,
         "append dict nonlocal context")
def closures(engine: Engine, variant: str) -> Any:
    log: list[Any] = []
    counts = {"n": 0}
    total = 0

    class Recorder:
        def __init__(self, tag: str) -> None:
            self.tag = tag

        def hit(self, x: torch.Tensor) -> None:
            nonlocal total
            if variant == "append":
                log.append((self.tag, tuple(x.shape)))
            elif variant == "dict":
                counts["n"] += 1
                counts[self.tag] = counts.get(self.tag, 0) + 1
            else:
                total += x.shape[0]

        def __enter__(self) -> Any:
            log.append("in")
            return self

        def __exit__(self, *error: Any) -> None:
            log.append("out")
            counts["n"] += 1

    def forward(x: torch.Tensor) -> torch.Tensor:
        recorder = Recorder("a")
        if variant == "context":
            with recorder:
                y = x * 2
            with Recorder("b") as other:
                return y + len(other.tag)
        recorder.hit(x)
        y = x * 2
        Recorder("b").hit(y)
        return y

    compiled = engine.compile(forward)
    results = [compiled(torch.ones(n)) for n in (2, 2, 3)]
    return results, log, counts, total


class Link:
    def __init__(self, value: float, following: Link | None = None) -> None:
        self.value, self.following, self.visits = value, following, 0


@program("identity", "a loop that ends where an object is the one that was asked for", 196173)
def identity(engine: Engine, variant: str) -> Any:
    def walk(x: torch.Tensor, link: Any, goal: Link) -> Any:
        steps = 0
        while link is not goal:
            x = x * link.value
            link.visits += 1
            link = link.following
            steps += 1
            if steps > 5:
                break
        return x, steps

    compiled = engine.compile(walk)
    last = Link(2.0)
    middle = Link(3.0, last)
    first = Link(5.0, middle)
    seen = [compiled(torch.ones(2), first, goal) for goal in (last, middle, last, first)]
    middle.following = first
    seen.append(compiled(torch.ones(2), first, last))
    return seen, last.visits, middle.visits, first.visits


class Recent:
    """A cache that forgets what was not used for longest."""

    def __init__(self, limit: int) -> None:
        self.entries: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self.limit, self.hits = limit, 0

    def get(self, key: int) -> torch.Tensor:
        if key in self.entries:
            self.entries.move_to_end(key)
            self.hits += 1
            return self.entries[key]
        value = self.entries[key] = torch.arange(key, dtype=torch.float).sum()
        if len(self.entries) > self.limit:
            self.entries.popitem(last=False)
        return value


@program("ordered-dict", "OrderedDict.move_to_end and popitem, of an argument and an attribute",
         198189, "argument attribute")
def ordered_dict(engine: Engine, variant: str) -> Any:
    if variant == "attribute":
        cache = Recent(2)
        compiled = engine.compile(lambda x, k: x + cache.get(k))
        return [(compiled(torch.ones(2), k), list(cache.entries), cache.hits)
                for k in (3, 4, 3, 5, 4, 3, 3)]

    def turn(x: torch.Tensor, d: Any) -> torch.Tensor:
        d.move_to_end("a", last=False)
        d.move_to_end("b")
        return x + d["a"]

    d = collections.OrderedDict(c=1.0, b=2.0, a=3.0)
    compiled = engine.compile(turn)
    return compiled(torch.ones(2), d), list(d), compiled(torch.ones(2), d), list(d)


class Units(torch.Tensor):
    """A tensor with a unit, which __torch_function__ hands on."""

    unit: str

    @staticmethod
    def __new__(cls, data: torch.Tensor, unit: str = "m") -> Any:
        made = data.as_subclass(cls)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        units = [each.unit for each in args if isinstance(each, Units) and hasattr(each, "unit")]
        if isinstance(made, Units):
            products = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
            made.unit = "*".join(units) if func in products else (units or ["?"])[0]
        return made


@program("units", "a subclass of Tensor with an attribute and __torch_function__", 176679,
         "plain break train")
def units(engine: Engine, variant: str) -> Any:
    def forward(a: Any, b: Any) -> Any:
        y = a * b
        if variant == "break":
            engine.graph_break()
        z = (y + 1).sin()
        return z, z.unit, type(z).__name__, isinstance(z, torch.Tensor)

    compiled, seen = engine.compile(forward), []
    for n in (2, 2, 3):
        x = torch.randn(n, requires_grad=variant == "train")
        z, *facts = compiled(Units(x, "m"), Units(torch.ones(n), "s"))
        if variant == "train":
            z.sum().backward()
        seen.append((z.as_subclass(torch.Tensor), facts, x.grad))
    return seen


class Named(torch.Tensor):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("plus_"):
            return lambda other: self + other * int(name[5:])
        raise AttributeError(name)


@program("getattr", "a subclass of Tensor with __getattr__, made in a compiled function", 194323)
def getattr_of_subclass(engine: Engine, variant: str) -> Any:
    def forward(x: torch.Tensor) -> Any:
        t = x.as_subclass(Named)
        return t.plus_3(torch.ones(2)).as_subclass(torch.Tensor), hasattr(t, "nope")

    compiled = engine.compile(forward)
    return compiled(torch.ones(2)), compiled(torch.zeros(2))


class Pair(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Vector(Pair):
    __slots__ = ()

    def __add__(self, other: Any) -> Vector:
        return Vector(self.x + other.x, self.y + other.y)

    def __mul__(self, k: Any) -> Vector:
        return self._replace(x=self.x * k, y=self.y * k)

    __rmul__ = __mul__

    @property
    def square(self) -> torch.Tensor:
        return self.x**2 + self.y**2


@program("named-tuple", "a subclass of a named tuple with operators", 175943)
def named_tuple(engine: Engine, variant: str) -> Any:
    def forward(a: Any, b: Any, k: float) -> Any:
        d = k * (a + b)
        return d, d.square, type(d).__name__, d._asdict(), (*d,), d == d

    compiled = engine.compile(forward)
    t = torch.ones(2)
    return [compiled(Vector(t, t * 2), Vector(t, t), k) for k in (3, 2.5)]


@dataclasses.dataclass(slots=True)
class State:
    h: torch.Tensor
    n: int = 0
    history: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: torch.Tensor
    factor: dataclasses.InitVar[float]
    c: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self, factor: float) -> None:
        object.__setattr__(self, "c", self.a * factor)


@dataclasses.dataclass(order=True, kw_only=True)
class Ordered:
    p: int
    q: str = dataclasses.field(compare=False, default="")


@program("dataclass", "dataclasses with slots, frozen ones, ordered ones", 195838,
         "local argument frozen ordered")
def data_classes(engine: Engine, variant: str) -> Any:
    def states(x: torch.Tensor, state: State) -> Any:
        state = State(x, 1) if variant == "local" else state
        other = dataclasses.replace(state, h=state.h * 2, n=state.n + 1)
        other.history.append(other.n)
        names = [field.name for field in dataclasses.fields(other)]
        return other, dataclasses.asdict(other), names, other.history is state.history

    def frozen(x: torch.Tensor) -> Any:
        one = Frozen(x, 3.0)
        other = dataclasses.replace(one, a=one.c, factor=2.0)
        try:
            one.a = x  # type: ignore[misc]
            refused = ""
        except dataclasses.FrozenInstanceError as error:
            refused = f"{type(error).__name__} {error}"
        return other.a, other.c, refused, dataclasses.is_dataclass(other)

    def ordered(x: torch.Tensor) -> Any:
        them = sorted([Ordered(p=3, q="c"), Ordered(p=1, q="a"), Ordered(p=2)])
        names = [each.q for each in them]
        return (x * them[0].p, names, repr(them[0]), them[0] < them[1],
                Ordered(p=1, q="z") == them[0])

    if variant in ("frozen", "ordered"):
        compiled = engine.compile(frozen if variant == "frozen" else ordered)
        return [compiled(torch.ones(2)) for _ in range(3)]
    compiled, state, seen = engine.compile(states), State(torch.ones(2)), []
    for _ in range(3):
        other, *facts = compiled(torch.ones(2), state)
        seen.append((other.h, other.n, list(other.history), facts))
        state = other if variant == "argument" else state
    return seen


class Operation:
    k = 3

    def __init__(self, w: float) -> None:
        self.w = w

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + cls.k

    @staticmethod
    def static(x: torch.Tensor, y: float = 2) -> torch.Tensor:
        return x - y

    def method(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x * self.w + sum(args) + kwargs.get("z", 0)


@program("callables", "objects, methods, class methods, partials and lambdas are compiled", 192071)
def callables(engine: Engine, variant: str) -> Any:
    Operation.k = 3
    one, x = Operation(4.0), torch.ones(2)
    seen = [
        engine.compile(one)(x),
        engine.compile(one.method)(x, 1, 2, z=3),
        engine.compile(Operation.of_class)(x),
        engine.compile(Operation.static)(x),
        engine.compile(functools.partial(one.method, z=5))(x),
        engine.compile(functools.partial(Operation.static, y=7))(x),
        engine.compile(lambda *args: args[0] + len(args))(x, 1),
    ]
    Operation.k = 9
    seen.append(engine.compile(Operation.of_class)(x))
    one.w = 5.0
    seen.append(engine.compile(one)(x))
    return seen


@program("dict-of-a-thread", "another thread writes into a dict that the function reads", 196208)
def dict_of_a_thread(engine: Engine, variant: str) -> Any:
    table = collections.OrderedDict((f"i{at}", at) for at in range(300))
    table["a"] = 3
    stop = threading.Event()

    def write() -> None:
        at = 0
        while not stop.is_set():
            table[f"n{at % 50}"] = at
            table.pop(f"n{(at + 25) % 50}", None)
            at += 1

    compiled = engine.compile(lambda d, x: x * d["a"])
    thread = threading.Thread(target=write)
    thread.start()
    try:
        return [compiled(table, torch.ones(2)) for _ in range(30)][-1]
    finally:
        stop.set()
        thread.join()
