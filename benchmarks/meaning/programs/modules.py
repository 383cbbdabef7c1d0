"""Modules: hooks, properties, state of the class, hidden states under two names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import gradients, program


class SkipBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.norm(h + self.mix(skip))


class SkipNet(nn.Module):
    """Reads the first hidden state under two names, maybe with a break in its loop."""

    def __init__(self, width: int, between: Callable[[], None] | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(SkipBlock(width) for _ in range(3))
        self.head = nn.Linear(width, 20)
        self.between = between

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = skip = self.embed(ids)
        cache = {"first": h}
        for at, block in enumerate(self.blocks):
            if self.between is not None and at == 1:
                self.between()
            h = block(h, cache["first"]) + skip.view_as(h)
        return self.head(h)


@program("two-names", "a hidden state that is read under two names",
         "https://github.com/pytorch/pytorch/pull/190938", "plain break dynamic bfloat16")
def two_names(engine: Engine, variant: str) -> Any:
    net = SkipNet(8, engine.graph_break if variant == "break" else None)
    if variant == "bfloat16":
        net = net.bfloat16()
    compiled = engine.compile(net, dynamic=True if variant == "dynamic" else None)
    seen = []
    for length in (5, 5, 7):
        net.zero_grad()
        ids = torch.randint(0, 20, (2, length))
        loss = F.cross_entropy(compiled(ids).float().flatten(0, 1), ids.flatten())
        loss.backward()
        seen.append((loss.to(net.head.weight.dtype), gradients(net)))
    return seen


class Modulated(nn.Module):
    """Layer norms whose shift, scale and gate come from one table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 6, width) * 0.1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.width = width

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        parts = (self.table + condition[:, None, :]).chunk(6, dim=1)
        for layer in self.layers:
            h = F.layer_norm(x, (self.width,)) * (1 + parts[1]) + parts[0]
            x = x + parts[2] * layer(h)
            h = F.layer_norm(x, (self.width,)) * (1 + parts[4]) + parts[3]
            x = x + parts[5] * F.gelu(h)
        return x


@program("modulation", "chained layer norms that share one table of shifts", 193061,
         "plain bfloat16 dynamic")
def modulation(engine: Engine, variant: str) -> Any:
    dtype = torch.bfloat16 if variant == "bfloat16" else torch.float32
    net = Modulated(48).to(dtype)
    compiled = engine.compile(net, dynamic=True if variant == "dynamic" else None)
    seen = []
    for length in (16, 16, 24):
        x = torch.randn(2, length, 48, dtype=dtype, requires_grad=True)
        condition = torch.randn(2, 48, dtype=dtype, requires_grad=True)
        net.zero_grad()
        y = compiled(x, condition)
        y.float().square().mean().backward()
        seen.append((y, x.grad, condition.grad, gradients(net)))
    return seen


class Router(nn.Module):
    """Leaves its losses in a list of the class, as routers of experts do."""

    losses: ClassVar[list[torch.Tensor]] = []
    scale: ClassVar[float] = 1.0
    table: ClassVar[dict[int, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.gate(x).softmax(-1)
        Router.losses.append(p.mean())
        type(self).table[len(Router.losses)] = p.shape[0]
        return x * p * Router.scale


@program("class-state", "lists and numbers that belong to the class", 169253, "train eval")
def class_state(engine: Engine, variant: str) -> Any:
    Router.losses, Router.scale, Router.table = [], 1.0, {}
    net = Router()
    compiled, seen = engine.compile(net), []
    for at in range(4):
        Router.scale = 1.0 + at
        with torch.set_grad_enabled(variant == "train"):
            seen.append(compiled(torch.ones(2 + (at > 2), 4)))
    if variant == "train":
        (sum(Router.losses) + seen[-1].sum()).backward()
    return seen, gradients(net), [loss.detach() for loss in Router.losses], dict(Router.table)


class Knob(nn.Module):
    """A property with getter, setter and deleter, each of which is noticed."""

    def __init__(self) -> None:
        super().__init__()
        self._k = 1.0
        self.log: list[Any] = []
        self.layer = nn.Linear(3, 3)

    @property
    def k(self) -> float:
        self.log.append("get")
        return self._k * 2

    @k.setter
    def k(self, value: float) -> None:
        self.log.append(("set", value))
        self._k = value + 1

    @k.deleter
    def k(self) -> None:
        self.log.append("deleted")
        self._k = 0.5

    def forward(self, x: torch.Tensor, value: float) -> torch.Tensor:
        self.k = value
        y = self.layer(x) * self.k
        if value > 2:
            del self.k
        return y + self._k


@program("property", "properties of a module are set, read and deleted", 176599, "eval train")
def properties(engine: Engine, variant: str) -> Any:
    net = Knob()
    compiled, seen = engine.compile(net), []
    for value in (1.0, 1.0, 3.0, 2.5):
        y = compiled(torch.ones(2, 3), value)
        seen.append([y, net._k, list(net.log)])
        if variant == "train":
            net.zero_grad()
            y.sum().backward()
            seen.append(gradients(net))
    return seen


@program("hooks", "hooks of all kinds, put on before and after the first call", 160083,
         "prepend backward_pre backward late kwargs always once state_dict")
def hooks(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    compiled, log, seen = engine.compile(net), [], []

    def go() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        net.zero_grad()
        y = compiled(x)
        (y**2).sum().backward()
        seen.append((y, x.grad, gradients(net), [str(each) for each in log]))

    def noted(word: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*args: Any) -> Any:
            log.append(word)
            return change(*args)

        return hook

    if variant == "always":
        return _always_called(net, go, log, seen)
    _put_hooks(variant, net, go, noted)
    go()
    go()
    return seen


def _put_hooks(variant: str, net: Any, go: Callable[[], None], noted: Any) -> None:
    if variant == "prepend":
        net[0].register_forward_pre_hook(noted("second", lambda m, a: (a[0] * 2,)))
        go()
        net[0].register_forward_pre_hook(noted("first", lambda m, a: (a[0] + 1,)), prepend=True)
    elif variant == "backward_pre":
        go()
        net[0].register_full_backward_pre_hook(noted("pre", lambda m, g: tuple(2 * i for i in g)))
    elif variant == "backward":
        go()
        net[2].register_full_backward_hook(noted("b", lambda m, i, o: tuple(3 * g for g in i)))
        net.register_full_backward_hook(noted("root", lambda m, i, o: None))
    elif variant == "late":
        go()
        handle = net[1].register_forward_hook(noted("late", lambda m, a, o: o + 1))
        go()
        handle.remove()
    elif variant == "kwargs":
        net[2].register_forward_hook(noted("kw", lambda m, a, k, o: o * 2), with_kwargs=True)
    elif variant == "once":
        handles = []

        def once(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
            handles.pop().remove()
            return out * 10

        handles.append(net[0].register_forward_hook(once))
    else:
        go()
        doubled = {name: value * 2 for name, value in net.state_dict().items()}
        net.load_state_dict(doubled)
        go()
        net.load_state_dict({name: v + 1 for name, v in doubled.items()}, assign=True)
        go()
        net[0] = nn.Linear(3, 3)


def _always_called(net: Any, go: Callable[[], None], log: list[Any], seen: list[Any]) -> Any:
    """A hook with always_call=True runs where a later module raises, too."""

    def raises(module: Any, args: Any) -> None:
        if len(log) > 1:
            raise ValueError("bad")

    net[0].register_forward_hook(lambda m, a, o: log.append(o is None), always_call=True)
    net[2].register_forward_pre_hook(raises)
    try:
        go()
        go()
    except ValueError as error:
        seen.append(str(error))
    return seen, log
