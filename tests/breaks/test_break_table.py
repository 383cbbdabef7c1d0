"""The break table: every kind of break site in every construct resumes and keeps the program's meaning.

A construct is the body of `f(x, log)` with `{B}` where the break happens, on a tensor expression;
a site is an expression that breaks the graph and gives its argument back. Each pair runs eagerly and
compiled three times; result, exceptions and the log of events must agree, and the tensor work
after the break must be in a graph again.
"""

from __future__ import annotations

import contextlib
import contextvars
import textwrap
from typing import Any

import torch

import dynamo
from tests.parametrize import rotated

CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("break_table")


class Oops(ValueError):
    pass


class Coded(Oops):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Manager:
    def __init__(self, log: list[Any], swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow


@contextlib.contextmanager
def managed(log: list[Any]) -> Any:
    log.append("open")
    try:
        yield 3
    finally:
        log.append("close")


class Cell:
    def __init__(self, value: Any) -> None:
        self.value = value


class Layer(torch.nn.Module):
    def __init__(self, site: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(9.0).view(3, 3) / 9)
            self.linear.bias.fill_(0.5)
        self.site, self.calls = site, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(self.site(self.linear(x) + 1)) * 2


SITES = {
    "explicit": "in_function({V})",
    "disabled": "disabled({V})",
    "unknown C method": "CONTEXT.get({V})",
    "item": "({V} + x.sum().item() * 0)",
    "branch": "({V} if x.sum() > -1e9 else -{V})",
    "nested twice": "outer({V})",
}

CONSTRUCTS = {
    "straight": "y = x + 1\ny = {B:y}\nreturn y * 2",
    "return": "return {B:x + 1} * 2",
    "argument": "return torch.add(x * 2, {B:x + 1}) * 2",
    "keyword argument": "return torch.add(x * 2, other={B:x + 1}) * 2",
    "star arguments": "a = [x * 2, {B:x + 1}]\nreturn torch.add(*a) * 2",
    "list display": "a = [x * 2, {B:x + 1}, x]\nreturn a[1] * a[0]",
    "dict display": "a = {{'p': x * 2, 'q': {B:x + 1}}}\nreturn a['q'] * a['p']",
    "subscript": "a = [x, x]\na[1] = {B:x + 1} * 2\nreturn a",
    "attribute": "c = Cell(x)\nc.value += {B:x + 1}\nreturn c.value * 2, c",
    "f-string": "s = f'{{len(log)}} {{type({B:x + 1}).__name__}} {{3}}'\nreturn s, x * 2",
    "conditional expression": "return (x * 2 if len(log) else {B:x + 1}) * 2",
    "and or": "return (len(log) > 5 or {B:x + 1} is not None) and x * 2",
    "walrus": "if (z := {B:x + 1}) is not None:\n    return z * 2",
    "unpacking": "a, (b, c) = x * 2, (x, {B:x + 1})\nreturn a + b * c",
    "chained comparison": "return (x * 2).dim() < {B:x + 1}.dim() + 1 < 9, x * 2",
    "if body": "y = x\nif y.dim() == 2:\n    y = {B:y + 1}\nreturn y * 2",
    "for range": "y = x\nfor i in range(3):\n    y = {B:y + i}\n    log.append(i)\nreturn y * 2",
    "for list": "y = x\nfor i, t in enumerate([x, x * 2]):\n    y = {B:y + t} + i\nreturn y * 2",
    "for dict": "y = x\nfor k, t in {{'p': x, 'q': x * 2}}.items():\n    log.append(k)\n    y = {B:y + t}\nreturn y * 2",
    "for continue": "y = x\nfor i in range(4):\n    if i == 1:\n        continue\n    y = {B:y + i}\n    if i == 2:\n        break\nelse:\n    y = y * 0\nreturn y * 2",
    "for else": "y = x\nfor i in range(2):\n    y = {B:y + i}\nelse:\n    y = y * 3\nreturn y * 2",
    "nested loops": "y = x\nfor i in range(2):\n    for j in [1, 2]:\n        y = {B:y + j} * 2\n    y = y - i\nreturn y * 2",
    "while": "y, i = x, 0\nwhile i < 3:\n    i += 1\n    y = {B:y + i}\nreturn y * 2",
    "loop over generator": "def g():\n    log.append('start')\n    yield x + 1\n    yield x + 2\n    log.append('end')\ny = x\nfor t in g():\n    y = {B:y + t}\nreturn y * 2",
    "inside generator": "def g():\n    yield {B:x + 1}\n    yield x + 2\ny = x\nfor t in g():\n    y = y + t\nreturn y * 2",
    "comprehension": "return sum([{B:x + i} for i in range(3)]) * 2",
    "generator expression": "return sum({B:x + i} for i in range(3)) * 2",
    "dict comprehension": "a = {{i: {B:x + i} for i in range(2)}}\nreturn a[0] * a[1]",
    "lambda": "g = lambda v: {B:v + 1} * 2\nreturn g(x) + g(x * 2)",
    "inner function": "def g(v, w=2):\n    return {B:v + w} * 2\nreturn g(x) + g(x, w=3)",
    "closure": "n = 0\ndef g(v):\n    nonlocal n\n    n += 1\n    v = {B:v + n}\n    n += 1\n    return v * n\ny = g(x)\nreturn g(y) * n",
    "recursion": "def g(v, n):\n    if n == 0:\n        return {B:v + 1}\n    return g(v * 2, n - 1) + n\nreturn g(x, 2) * 2",
    "method": "class P:\n    def __init__(self, v):\n        self.v = v\n    def go(self, w):\n        self.v = {B:self.v + w}\n        return self\nreturn P(x + 1).go(2).go(3).v * 2",
    "constructor": "class P:\n    def __init__(self, v):\n        self.v = {B:v + 1}\nreturn P(x * 2).v * 2",
    "property": "class P:\n    @property\n    def v(self):\n        return {B:x + 1}\nreturn P().v * 2",
    "operator method": "class P:\n    def __add__(self, o):\n        return {B:x + o}\nreturn (P() + 2) * 2",
    "with manager": "with Manager(log) as m:\n    y = {B:x + 1}\n    log.append('in')\nreturn y * 2",
    "with contextmanager": "with managed(log) as m:\n    y = {B:x + m}\n    y = y + 1\nreturn y * 2",
    "with two": "with Manager(log), managed(log) as m:\n    y = {B:x + m}\n    y = y + 1\nreturn y * 2",
    "with no_grad": "with torch.no_grad():\n    y = {B:x + 1}\n    log.append(torch.is_grad_enabled())\n    y = y + 1\nlog.append(torch.is_grad_enabled())\nreturn y * 2",
    "with then raise": "with Manager(log, swallow=True):\n    y = {B:x + 1}\n    raise Oops(3)\nreturn x * 2",
    "with escaping": "with Manager(log):\n    y = {B:x + 1}\n    raise Oops(3)\nreturn x * 2",
    "with then raise of an object": "with managed(log) as m:\n    y = {B:x + 1}\n    raise Coded(3)\nreturn x * 2",
    "with raising site": "with Manager(log, swallow=True):\n    y = boom({B:x + 1})\nreturn x * 2",
    "try": "try:\n    y = {B:x + 1}\nexcept Oops:\n    y = x\nreturn y * 2",
    "try then raise": "try:\n    y = {B:x + 1}\n    raise Oops(1)\nexcept Oops as e:\n    log.append(e.args)\n    y = y + 1\nreturn y * 2",
    "try raising site": "y = x\ntry:\n    y = boom({B:x + 1})\nexcept Oops as e:\n    log.append(e.args)\n    y = y + 5\nreturn y * 2",
    "try wrong handler": "try:\n    y = boom({B:x + 1})\nexcept KeyError:\n    return x\nreturn y * 2",
    "except body": "try:\n    raise Oops(1)\nexcept Oops as e:\n    y = {B:x + 1}\n    log.append(e.args)\nreturn y * 2",
    "except reraise": "try:\n    raise Oops(1)\nexcept Oops as e:\n    y = {B:x + 1}\n    raise KeyError(2) from e\nreturn y * 2",
    "bare reraise": "try:\n    try:\n        raise Oops(1)\n    except Oops:\n        y = {B:x + 1}\n        raise\nexcept ValueError as e:\n    log.append(repr(e))\n    y = x + 3\nreturn y * 2",
    "try else": "try:\n    y = x + 1\nexcept Oops:\n    y = x\nelse:\n    y = {B:y * 3}\nreturn y * 2",
    "finally": "try:\n    y = x + 1\nfinally:\n    y = {B:x + 3}\n    log.append('f')\nreturn y * 2",
    "finally after raise": "try:\n    try:\n        raise Oops(1)\n    finally:\n        y = {B:x + 3}\n        log.append('f')\nexcept Oops:\n    y = y + 7\nreturn y * 2",
    "return in finally": "try:\n    y = {B:x + 1}\n    return y * 3\nfinally:\n    log.append('f')",
    "raise in callee": "def g(v):\n    v = {B:v + 1}\n    raise Oops(2)\ntry:\n    g(x * 2)\nexcept Oops as e:\n    log.append(e.args)\nreturn x * 2",
    "handlers of three frames": "def g(n):\n    try:\n        if n == 0:\n            raise Oops('deep')\n        return g(n - 1)\n    except Oops as e:\n        y = {B:x + n}\n        log.append((n, e.args))\n        raise\n    finally:\n        log.append(('f', n))\ntry:\n    g(2)\nexcept Oops as e:\n    log.append('caught')\nreturn x * 2",
    "try in loop": "y = x\nfor i in range(3):\n    try:\n        y = {B:y + i}\n        if i == 1:\n            raise Oops(i)\n    except Oops:\n        log.append(i)\n        continue\n    finally:\n        log.append('f')\nreturn y * 2",
    "with in loop in try": "y = x\ntry:\n    for i in range(3):\n        with Manager(log):\n            y = {B:y + i}\n            if i == 1:\n                raise Oops(i)\nexcept Oops:\n    y = y + 1\nreturn y * 2",
    "match": "match (x * 2, 3):\n    case (v, int(n)):\n        y = {B:v + n}\n    case _:\n        y = x\nreturn y * 2",
    "assert": "assert {B:x + 1} is not None, 'no'\nreturn x * 2",
    "delete": "y = x + 1\nz = y * 2\ndel y\nz = {B:z}\ntry:\n    y\nexcept UnboundLocalError:\n    log.append('unbound')\nreturn z * 2",
    "list mutation": "a = log\na.append(1)\ny = {B:x + 1}\na.append(2)\nlog.append(len(a))\nreturn y * 2, a is log",
    "module": "return layer(x + 1) * 2",
    "map": "return list(map(lambda v: {B:v + 1} * 2, [x, x * 2]))",
    "sorted key": "return sorted([x + 2, x + 1], key=lambda v: {B:v * 2}.shape[0])[0] * 2",
}
RAISES = {"with escaping", "with then raise of an object", "try wrong handler", "except reraise"}
# Each call defines a new class, so that code which depends on the class is recompiled.
NEW_CLASS = {"method", "constructor", "property", "operator method"}
# Here no tensor operation follows the break, or all work is in the body of a generator, which is not
# compiled by itself.
NO_WORK_AFTER = RAISES | {"sorted key", "generator expression"}


def namespace() -> dict[str, Any]:
    def in_function(v: Any) -> Any:
        v = v + 0
        dynamo.graph_break()
        return v + 0

    def outer(v: Any) -> Any:
        return in_function(v * 1) * 1

    @dynamo.disable
    def disabled(v: Any) -> Any:
        return v

    @dynamo.disable
    def boom(v: Any) -> Any:
        raise Oops("boom")

    return dict(globals(), in_function=in_function, outer=outer, disabled=disabled, boom=boom)


def build(construct: str, site: str) -> Any:
    text = CONSTRUCTS[construct]
    scope = namespace()
    exec(f"def site(v, x=None):\n    x = v\n    return {SITES[site].replace('{V}', 'v')}", scope)
    scope["layer"] = Layer(scope["site"])
    while "{B:" in text:
        start = text.index("{B:")
        end = text.index("}", start)
        text = text[:start] + SITES[site].replace("{V}", f"({text[start + 3 : end]})") + text[end + 1 :]
    text = text.replace("{{", "{").replace("}}", "}")
    exec(f"def f(x, log):\n{textwrap.indent(text, '    ')}", scope)
    return scope["f"]


def run(f: Any, seed: int) -> tuple[Any, list[Any], bool]:
    log: list[Any] = []
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(seed))
    try:
        result = f(x, log)
    except (Oops, KeyError) as error:
        result = (type(error), error.args, type(error.__cause__), type(error.__context__))
    return result, log, torch.is_grad_enabled()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Cell):
        return isinstance(b, Cell) and same(a.value, b.value)
    return bool(a == b)


# Each construct around a third of the sites, which take turns.
@rotated("construct, site", CONSTRUCTS, SITES, each=-(-len(SITES) // 3))
def test_break(construct: str, site: str) -> None:
    dynamo.reset()
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(sum(node.op.startswith("call_") for node in module.graph.nodes))
        return module.forward

    eager, compiled = build(construct, site), dynamo.compile(build(construct, site), backend=backend)
    for seed in range(3):
        assert same(run(eager, seed), run(compiled, seed)), (run(eager, seed), run(compiled, seed))
    assert len(graphs) >= (1 if construct in NO_WORK_AFTER else 2), "the frame was given up"
    if construct in NEW_CLASS or construct == "module" or site == "item":
        # Numbers are constants of the code behind them until they become symbolic: the value that
        # `item()` gives, and the counter attribute of the module.
        return
    count = len(graphs)
    run(compiled, 7)
    assert len(graphs) == count, "the same program on other values recompiled"
