"""Wrapper tensors that the program makes of plain ones in a trace, for a trace that is cached.

A constructor of such a class is code that is not traced: it runs on fakes, and the trace goes on
with what it has made. In: the class, its arguments, what it has made. Out: a `Constructed`, of
plain values and classes, with which another process runs the constructor again on fakes like these
and sees whether it makes the same. What such code reads need not be known.

Errors: Unknown, with a reason, for arguments and results that have no text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch

from dynamo.base.errors import Signal
from dynamo.base.subclasses import is_wrapper
from dynamo.shapes.fake import Fake, FakeWorld
from dynamo.shapes.fake_tensor import StorageToken

PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device,
                   torch.layout, torch.memory_format))  # fmt: skip


class Unknown(Signal):
    """reason: why another process can't make the wrapper again, as a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Constructed(NamedTuple):
    """cls: the class. args, kwargs: see `_Encoder`. fakes: (size, stride, offset, dtype, device,
    elements of a constant, number of the storage); storages: their bytes. grad: whether in grad
    mode. made: a text of the result, and of the arguments afterwards."""

    cls: type
    args: Any
    kwargs: Any
    fakes: tuple[Any, ...]
    storages: tuple[int, ...]
    grad: bool
    made: str


def constructed(
    cls: type, args: list[Any], kwargs: Mapping[str, Any], made: Any, world: Any
) -> Constructed:
    """world: of the fakes. Errors: Unknown."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Unknown("under autocast")
    encoder = _Encoder(world)
    given = encoder.of(tuple(args)), encoder.of(dict(kwargs))
    return Constructed(
        cls, *given, tuple(encoder.rows), tuple(encoder.sizes), torch.is_grad_enabled(),
        _text(made, cls, encoder))


def differs(known: Constructed) -> str:
    """Why the constructor makes another thing now; empty where it makes the same."""
    world = FakeWorld()
    tokens = [StorageToken(size) for size in known.storages]
    fakes = []
    for size, stride, offset, dtype, device, content, storage in known.fakes:
        facts = world.cache.facts(size, stride, offset, dtype, device)
        fake = world.make(facts, tokens[storage])
        if content is not None:
            value = torch.empty(fake.shape, dtype=fake.dtype)
            if content:
                value = torch.frombuffer(bytearray(content), dtype=fake.dtype).reshape(fake.shape)
            world.constants.learn(fake, value)
        fakes.append(fake)
    args, kwargs = _decoded(known.args, fakes), _decoded(known.kwargs, fakes)
    name = known.cls.__qualname__
    try:
        with torch.set_grad_enabled(known.grad):
            made = world.run(known.cls, *args, **kwargs)
        now = constructed(known.cls, list(args), kwargs, made, world)
    except Unknown as why:
        return f"{name} is made {why.reason} now"
    except Exception as error:
        return f"{name} raises {type(error).__name__} now"
    same = now.made == known.made and (now.args, now.kwargs) == (known.args, known.kwargs)
    return "" if same else f"{name} makes {now.made} now, not {known.made}"


class _Encoder:
    """Arguments as nested tuples of plain values and classes: ("fake", number), ("value", plain),
    ("tuple" | "list", ..), ("dict", (key, item), ..), ("record", class, ..)."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.leaves: list[Any] = []  # what may be found again in the result, by identity
        self.fakes: dict[int, int] = {}
        self.rows: list[Any] = []
        self.storages: dict[int, int] = {}
        self.sizes: list[int] = []

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return "value", value
        if isinstance(value, torch.Tensor):
            return "fake", self.fake(value)
        self.leaves.append(value)
        if kind is tuple or kind is list or kind is torch.Size:
            name = "list" if kind is list else "tuple"
            return name, *map(self.of, value)
        if kind is dict and all(type(key) is str for key in value):
            return "dict", *[(key, self.of(item)) for key, item in value.items()]
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return "record", kind, *map(self.of, value)
        if isinstance(value, Enum) or isinstance(value, type):
            return "value", value
        raise Unknown(f"of a {kind.__qualname__}")

    def fake(self, value: Any) -> int:
        """The number of a fake. Errors: Unknown for one with a history or a known value."""
        if type(value) is not Fake:
            raise Unknown(f"of a {type(value).__qualname__}")
        known = self.fakes.get(id(value))
        if known is not None:
            return known
        if value.requires_grad or value.facts.bits or value.is_inference():
            raise Unknown("of a tensor that is no plain one")
        facts = value.facts
        storage = self.storages.setdefault(value.storage_key, len(self.sizes))
        if storage == len(self.sizes):
            self.sizes.append(value.token.nbytes)
        self.fakes[id(value)] = len(self.rows)
        self.rows.append((tuple(facts.size), tuple(facts.stride), facts.offset, facts.dtype,
                          facts.device, self._content(value), storage))  # fmt: skip
        self.leaves.append(value)
        return self.fakes[id(value)]


    def _content(self, value: Fake) -> bytes | None:
        """The elements of a constant of the program, which the constructor may read."""
        known = self.world.constant_of(value)
        if known is None:
            return None
        if known.device.type != "cpu" or known.layout is not torch.strided or known.is_conj():
            raise Unknown("of a constant that is no plain tensor on a CPU")
        flat = known.detach().contiguous().reshape(-1)
        return bytes(flat.view(torch.uint8).tolist())


def _decoded(plain: Any, fakes: list[Any]) -> Any:
    name, *parts = plain
    if name == "fake":
        return fakes[parts[0]]
    if name == "value":
        return parts[0]
    if name == "dict":
        return {key: _decoded(item, fakes) for key, item in parts}
    if name == "record":
        return parts[0]._make([_decoded(part, fakes) for part in parts[1:]])
    items = [_decoded(part, fakes) for part in parts]
    return tuple(items) if name == "tuple" else items


def _text(made: Any, cls: type, encoder: _Encoder) -> str:
    """All that is known of the result, and whether the arguments are as they were."""
    if type(made) is not cls or not is_wrapper(made):
        raise Unknown(f"as a {type(made).__qualname__}")
    for base in cls.__mro__:
        if base is not torch.Tensor and base.__dict__.get("__slots__"):
            raise Unknown("with slots")
        if base is torch.Tensor:
            break
    with torch._C.DisableTorchFunctionSubclass():
        return _text_of(made, encoder)


def _text_of(made: Any, encoder: _Encoder) -> str:
    names, context = made.__tensor_flatten__()
    own = [f"{name}: {_shown(value, encoder)}" for name, value in vars(made).items()]
    leaves = [leaf for leaf in encoder.leaves if type(leaf) is Fake]
    return "\n".join([
        f"{tuple(made.shape)} {tuple(made.stride())} {made.storage_offset()} {made.dtype} "
        f"{made.device} {made.layout} {made.requires_grad} {made.is_leaf}",
        *own, _shown(list(names), encoder), _shown(context, encoder),
        *[f"{leaf._version} {leaf.requires_grad}" for leaf in leaves]])


def _shown(value: Any, encoder: _Encoder) -> str:
    for number, leaf in enumerate(encoder.leaves):
        if leaf is value:
            return f"argument {number}"
    return " ".join(_words(value, encoder))


def _words(value: Any, encoder: _Encoder) -> Iterator[str]:
    kind = type(value)
    if kind in PLAIN:
        yield value.hex() if kind is float else repr(value)
    elif kind in (tuple, list, torch.Size):
        yield f"{kind.__name__}({', '.join([_shown(item, encoder) for item in value])})"
    elif kind is dict:
        for key, item in value.items():
            yield f"{_shown(key, encoder)}: {_shown(item, encoder)},"
    elif isinstance(value, Enum):
        yield f"{kind.__module__}.{value}"
    elif dataclasses.is_dataclass(kind) or issubclass(kind, tuple) and hasattr(kind, "_fields"):
        known: Any = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
        fields = tuple(known)
        if getattr(value, "__dict__", {}).keys() - {*fields}:
            raise Unknown(f"with a {kind.__qualname__}")
        yield f"{kind.__module__}.{kind.__qualname__}"
        for name in fields:
            yield f"{name}={_shown(getattr(value, name), encoder)}"
    else:
        raise Unknown(f"with a {kind.__qualname__}")
