"""Fake tensors: metadata that behaves like a tensor, for static shapes.

In: real tensors (`FakeWorld.from_real`). Out: `Fake` tensors with the real device, dtype, sizes,
strides and offset but no data, on which any torch function runs while the world is active:

    >>> world = FakeWorld()
    >>> x = world.from_real(torch.randn(2, 3))
    >>> y = world.run(torch.mm, x, world.from_real(torch.randn(3, 5)))
    >>> y.shape, y.device.type
    (torch.Size([2, 5]), 'cpu')

Autograd works on top (`requires_grad`, `grad_fn`, `torch.autograd.grad`), in-place operations bump
`_version` and give back the same object, views share a `storage_key`. torch's own FakeTensor does
the same, but its first use costs two seconds of imports and each operation several times as much;
it remains what symbolic shapes are built on.

How an operation is run: its outcome is looked up by (op, facts of the arguments). On a miss
a rule of `rules` computes it; where there is none, the op's meta kernel runs (then its
decomposition from `torch._decomp`), and the outcome is kept. Real errors of the program are raised
as eager raises them: a failing operation is repeated on small real tensors for the message.

Exceptions: `DataDependent` where only the data could tell, `NoFakeKernel` where nobody can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo.base.errors import Signal
from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, Plain, Same, Several, View
from dynamo.shapes.rules import SHAPE_RULES, pointwise_outcome

RESIZED = "a storage is resized or exchanged"
OpOverload = torch._ops.OpOverload
aten = torch.ops.aten


class DataDependent(Signal):
    """The result's shape or value depends on data (`item()`, `nonzero()`, a mask as an index)."""

    def __init__(self, op: Any) -> None:
        super().__init__(str(op))
        self.op = op


class NoFakeKernel(Signal):
    """The operation can't be run on fake tensors."""

    def __init__(self, op: Any, why: str) -> None:
        super().__init__(f"{op}: {why}")
        self.op = op
        self.why = why


class NotSymbolic(Signal):
    """An operation failed with symbolic sizes; static ones may work, or fail as eager does."""


class Undecided(Signal):
    """An operation needs to know of numbers what only the running program knows.

    expression: of SymPy; names: of the symbols in it.
    """

    def __init__(self, expression: Any, names: Sequence[str]) -> None:
        super().__init__(str(expression))
        self.expression = expression
        self.names = tuple(names)


class Unprintable(Signal):
    """An assumption that is no expression of the guards' language; symbols: names in it."""

    def __init__(self, expression: Any, symbols: Sequence[str]) -> None:
        super().__init__(str(expression))
        self.symbols = tuple(symbols)


class StorageToken:
    """Identity of a storage that does not exist; `meta` is a storage of the meta device."""

    __slots__ = ("_meta", "nbytes")

    def __init__(self, nbytes: int, meta: torch.UntypedStorage | None = None) -> None:
        self.nbytes = nbytes
        self._meta = meta

    def meta(self) -> torch.UntypedStorage:
        if self._meta is None:
            self._meta = torch.UntypedStorage(self.nbytes, device="meta")
        return self._meta


class Fake(torch.Tensor):
    """A tensor without data. Made by a `FakeWorld` only.

    facts: its metadata as one interned record; token: its storage's identity; constant: the
    real tensor and the version at which it was its value, for `torch.tensor(3)` in the program.
    """

    facts: Facts
    token: StorageToken
    world: FakeWorld
    constant: tuple[torch.Tensor, int] | None

    # torch's stubs know these three as plain functions of other arguments.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for arg in (*args, *(kwargs or {}).values()):
            for item in arg if isinstance(arg, (list, tuple)) else (arg,):
                if type(item) is Fake:
                    return item.world.dispatch(func, args, kwargs or {})
        raise NoFakeKernel(func, "no fake tensor among the arguments")

    def __repr__(  # type: ignore[override]
        self, *, tensor_contents: Any = None
    ) -> str:
        extra = ", requires_grad=True" if self.requires_grad else ""
        return f"Fake({self.facts}{extra})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    @property
    def meta_tensor(self) -> torch.Tensor:
        """A tensor of the meta device with these facts; fakes that alias share its storage."""
        meta: torch.Tensor | None = self.__dict__.get("_meta")
        if meta is None:
            with torch._C._DisableTorchDispatch():
                meta = _meta_over(self.token.meta(), self.facts)
            self.__dict__["_meta"] = meta
        return meta

    @property
    def storage_key(self) -> int:
        """Equal for fakes that share a storage."""
        return id(self.token)


def _meta_over(storage: torch.UntypedStorage, facts: Facts) -> torch.Tensor:
    with torch.no_grad():
        meta = torch.empty(0, dtype=facts.dtype, device="meta")
        meta.set_(storage, facts.offset, facts.size, facts.stride)  # type: ignore[call-overload]
        if facts.is_conj:
            torch._C._set_conj(meta, True)
        if facts.is_neg:
            torch._C._set_neg(meta, True)
    return meta


class _NonLeaf(torch.autograd.Function):
    """Gives a fake a history, as a tensor has that some other computation made."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, make: Callable[[], Fake]) -> Fake:
        return make()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def give_history(real: torch.Tensor, make: Callable[[], Any]) -> Any:
    """A fake with the autograd state of the real tensor: requires_grad, is_leaf."""
    if not real.requires_grad:
        return make()
    if real.is_leaf:
        return make().requires_grad_()
    with torch.enable_grad():
        return _NonLeaf.apply(make().requires_grad_(), make)


class _WorldMode(TorchDispatchMode):
    """Sends every ATen call, factories included, to its world."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self.world = world

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.world.dispatch(func, args, kwargs or {})


_SCALARS: frozenset[type] = frozenset(
    {
        int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.device,
        torch.memory_format,
    }
)  # fmt: skip

_REPLAY_BYTES = 1 << 24
_FOLDED = 64  # elements


class _Uncacheable(Exception):
    pass


class FakeWorld:
    """The fake tensors of one compile, and the rules by which operations run on them.

    cache: share one between the worlds of a compile; a world has its own otherwise.
    """

    is_symbolic = False

    def __init__(self, cache: OpCache | None = None) -> None:
        self.cache = cache if cache is not None else OpCache()
        self.autocast = False
        self._mode = _WorldMode(self)
        self._from_real: dict[int, tuple[torch.Tensor, Fake]] = {}
        self._storages: dict[int, StorageToken] = {}
        self._ops: dict[Any, _OpFacts] = {}

    # -- entering ------------------------------------------------------------------------------

    def __enter__(self) -> FakeWorld:
        self._mode.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mode.__exit__(kind, value, trace)

    def constant_of(self, fake: Fake) -> torch.Tensor | None:
        """The value of a fake that was made of constants of the program."""
        constant = fake.constant
        return constant[0] if constant is not None and constant[1] == fake._version else None

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)` with this world active."""
        # not to be seen from inside of an operator
        self.autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        with self._mode:
            return fn(*args, **kwargs)

    # -- making fakes --------------------------------------------------------------------------

    def from_real(self, tensor: torch.Tensor) -> Fake:
        """The fake of a real tensor: always the same one for the same object.

        Tensors that share a storage give fakes that share one. `isinstance(fake, nn.Parameter)`
        holds where it holds for the tensor; `grad`, `is_leaf` and `requires_grad` agree.
        """
        known = self._from_real.get(id(tensor))
        if known is not None:
            return known[1]
        if type(tensor) is Fake:
            if tensor.world is not self:
                raise NoFakeKernel("from_real", "a fake tensor of another world")
            return tensor
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise NoFakeKernel("from_real", f"layout {tensor.layout} is not modelled")
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise NoFakeKernel("from_real", "a tensor inside a torch.func transform")
        with torch._C._DisableTorchDispatch():
            fake = self._imitate(tensor)
        self._from_real[id(tensor)] = (tensor, fake)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]
        if fake.is_leaf and tensor.grad is not None:
            fake.grad = self.from_real(tensor.grad)
        return fake

    def _imitate(self, tensor: torch.Tensor) -> Fake:
        facts = self.cache.facts_of(tensor, tensor.device)
        storage = tensor.untyped_storage()
        token = self._storages.get(storage._cdata)
        if token is None:
            token = StorageToken(storage.nbytes())
            self._storages[storage._cdata] = token
        return give_history(tensor, lambda: self.make(facts, token))

    def make(self, facts: Facts, token: StorageToken | None = None) -> Fake:
        """A new fake with these facts, on a storage of its own unless a token is given."""
        fake: Fake = torch.Tensor._make_wrapper_subclass(
            Fake,
            facts.size,
            facts.stride,
            facts.offset,
            None,
            facts.dtype,
            torch.strided,
            facts.device,
            False,
            False,
        )
        state = fake.__dict__
        state["facts"] = facts
        state["token"] = token if token is not None else StorageToken(facts.nbytes)
        state["world"] = self
        state["constant"] = None
        if facts.bits:
            torch._C._set_conj(fake, facts.is_conj)
            torch._C._set_neg(fake, facts.is_neg)
        return fake

    # -- running operations ----------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen call. Called with no dispatch mode active."""
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = _OpFacts(func)
        if op.special is not None:
            result = op.special(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        fakes: list[Fake] = []
        parts: list[Any] = [func, torch.get_default_dtype()]
        try:
            for arg in args:
                self._key_part(arg, parts, fakes)
            if kwargs:
                for name, arg in kwargs.items():
                    parts.append(name)
                    self._key_part(arg, parts, fakes)
            key = tuple(parts)
            outcome = self.cache.outcomes.get(key)
        except _Uncacheable:
            return self._miss(op, args, kwargs, None)
        if outcome is None:
            self.cache.misses += 1
            result = self._miss(op, args, kwargs, key)
        else:
            self.cache.hits += 1
            result = self._replay(outcome, fakes)
        constant = fakes[0].constant is not None if fakes else op.pointwise
        if constant and type(result) is Fake:
            self._fold(op, args, kwargs, fakes, result)
        return result

    def _fold(
        self, op: _OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], fakes: list[Fake],
        result: Fake,
    ) -> None:
        """Remembers the value of a new tensor that is made of constants of the program only."""
        known = all(self.constant_of(fake) is not None for fake in fakes)
        shared = any(result.token is fake.token for fake in fakes)
        if not known or shared or op.draws or self.autocast or result.numel() > _FOLDED:
            return

        def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
            return self.constant_of(tensor) if type(tensor) is Fake else tensor

        try:
            value = op.func(*_map_tensors(args, value_of, []), **_map_tensors(kwargs, value_of, []))
        except Exception:
            return  # where the program runs it, it raises
        result.__dict__["constant"] = (value, result._version)

    def _key_part(self, arg: Any, parts: list[Any], fakes: list[Fake]) -> None:
        kind = type(arg)
        if kind is Fake:
            parts.append(arg.facts)
            fakes.append(arg)
        elif kind in _SCALARS:
            parts.append(kind)
            parts.append(arg)
        elif kind is list or kind is tuple or kind is torch.Size:
            parts.append(len(arg))
            for item in arg:
                if type(item) is int:
                    parts.append(item)
                else:
                    self._key_part(item, parts, fakes)
        elif isinstance(arg, torch.Tensor):
            fake = self.from_real(arg)
            parts.append(fake.facts)
            fakes.append(fake)
        elif isinstance(arg, torch.Generator):
            parts.append("generator")
        else:
            raise _Uncacheable

    def _replay(self, outcome: Outcome, fakes: list[Fake]) -> Any:
        kind = type(outcome)
        if kind is Fresh:
            return self.make(outcome.facts)  # type: ignore[union-attr]
        if kind is View:
            return self.make(outcome.facts, fakes[outcome.argument].token)  # type: ignore[union-attr]
        if kind is Same:
            return fakes[outcome.argument]  # type: ignore[union-attr]
        if kind is Plain:
            return outcome.value  # type: ignore[union-attr]
        return outcome.kind(self._replay(item, fakes) for item in outcome.items)  # type: ignore[union-attr]

    def _miss(
        self, op: _OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> Any:
        op.refuse(args)
        fakes: list[Fake] = []
        plain_args, plain_kwargs = op.bind(_map_tensors(args, self.from_real, fakes), kwargs)
        plain_kwargs = _map_tensors(plain_kwargs, self.from_real, fakes)
        outcome = None
        if op.rule is not None:
            outcome = op.rule(self.cache, op.func, plain_args, plain_kwargs)
        if outcome is not None:
            if key is not None:
                self.cache.outcomes[key] = outcome
            return self._replay(outcome, fakes)
        device = self._output_device(op, plain_args, plain_kwargs, fakes)
        metas: list[torch.Tensor] = []
        meta_args = _map_tensors(plain_args, lambda fake: fake.meta_tensor, metas)
        meta_kwargs = _map_tensors(plain_kwargs, lambda fake: fake.meta_tensor, metas)
        if op.takes_device:
            meta_kwargs["device"] = torch.device("meta")
            if meta_kwargs.get("pin_memory"):
                meta_kwargs["pin_memory"] = False
        if op.takes_generator:
            meta_kwargs.pop("generator", None)
        result = self._run_meta(op, meta_args, meta_kwargs, plain_args, plain_kwargs)
        if op.changes_facts:
            return self._change_facts(op, result, metas, fakes)
        self._refuse_resized(op, metas, fakes)
        outcome = self._outcome_of(result, metas, device)
        if key is not None and outcome is not None:
            self.cache.outcomes[key] = outcome
            return self._replay(outcome, fakes)
        if outcome is None:
            raise NoFakeKernel(op.func, "outputs that share a storage of their own")
        return self._replay(outcome, fakes)

    def _run_meta(
        self, op: _OpFacts, meta_args: Any, meta_kwargs: Any, args: Any, kwargs: Any
    ) -> Any:
        func = op.func
        try:
            return func(*meta_args, **meta_kwargs)
        except NotImplementedError as error:
            decomposition = torch._decomp.decomposition_table.get(func)
            if decomposition is None:
                raise NoFakeKernel(func, str(error).split("\n")[0]) from None
            try:
                return decomposition(*meta_args, **meta_kwargs)
            except Exception as inner:
                raise NoFakeKernel(func, f"its decomposition failed: {inner}") from None
        except Signal:
            raise
        except Exception as error:
            self._raise_as_eager(op, args, kwargs, error)
            raise NoFakeKernel(
                func, f"its meta kernel failed where eager does not: {error}"
            ) from None

    def _raise_as_eager(self, op: _OpFacts, args: Any, kwargs: Any, error: Exception) -> None:
        """Repeats a failed operation on zeros, so that eager's own exception is raised."""
        fakes: list[Fake] = []
        _map_tensors((args, kwargs), lambda fake: fake, fakes)
        if sum(fake.facts.nbytes for fake in fakes) > _REPLAY_BYTES:
            raise error
        real_args = _map_tensors(args, _zeros_like, [])
        real_kwargs = _map_tensors(kwargs, _zeros_like, [])
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        op.func(*real_args, **real_kwargs)

    def _outcome_of(
        self, result: Any, metas: list[torch.Tensor], device: torch.device
    ) -> Outcome | None:
        if isinstance(result, torch.Tensor):
            for index, meta in enumerate(metas):
                if result is meta:
                    return Same(index)
            facts = self.cache.facts_of(result, device)
            storage = result.untyped_storage()._cdata
            for index, meta in enumerate(metas):
                if meta.untyped_storage()._cdata == storage:
                    return View(facts, index)
            return Fresh(facts)
        if isinstance(result, (list, tuple)):
            items = [self._outcome_of(item, metas, device) for item in result]
            storages = [
                item.untyped_storage()._cdata
                for item, outcome in zip(result, items, strict=True)
                if type(outcome) is Fresh
            ]
            if None in items or len(set(storages)) != len(storages):
                return None
            kind = tuple if isinstance(result, tuple) else list
            return Several(kind, tuple(items))  # type: ignore[arg-type]
        return Plain(result)

    def _change_facts(
        self, op: _OpFacts, result: Any, metas: list[torch.Tensor], fakes: list[Fake]
    ) -> Any:
        """`t_`, `squeeze_`, ...: the fake itself gets other sizes, on the same storage."""
        fake, meta = fakes[0], metas[0]
        facts = self.cache.facts_of(meta, fake.device)
        with torch._C._DisableTorchDispatch():
            torch.Tensor.as_strided_(fake, facts.size, facts.stride, facts.offset)
        fake.__dict__["facts"] = facts
        return fake

    def _refuse_resized(
        self, op: _OpFacts, metas: list[torch.Tensor], fakes: list[Fake]
    ) -> None:
        """`out=` of another shape: the operation has given an argument other sizes."""
        resized = [
            fake for fake, meta in zip(fakes, metas, strict=True)
            if (meta.size(), meta.stride()) != (fake.facts.size, fake.facts.stride)
        ]
        for fake in resized:
            fake.__dict__.pop("_meta", None)
        if resized:
            raise NoFakeKernel(op.func, RESIZED)

    def _output_device(
        self, op: _OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], fakes: list[Fake]
    ) -> torch.device:
        if op.takes_device:
            wanted = kwargs.get("device")
            if wanted is not None:
                return _with_index(torch.device(wanted))
            return fakes[0].device if fakes else torch.device("cpu")
        return common_device(op.func, fakes)


def common_device(func: Any, fakes: list[Fake]) -> torch.device:
    """The device on which eager puts the outputs; raises eager's error where they differ."""
    if not fakes:
        return torch.device("cpu")
    device = fakes[0].facts.device
    scalar = not fakes[0].facts.size
    for fake in fakes:
        other = fake.facts.device
        if other == device:
            scalar = scalar and not fake.facts.size
            continue
        if not fake.facts.size and other.type == "cpu":
            continue
        if scalar and device.type == "cpu":
            device, scalar = other, False
            continue
        if func in _MIXED_DEVICES:
            break
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{device} and {other}!"
        )
    return device


# Operations that take tensors of several devices; the outputs live where the first argument does.
_MIXED_DEVICES: frozenset[Any] = frozenset(
    {
        aten.copy_.default,
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
    }
)


def _with_index(device: torch.device) -> torch.device:
    """`cuda` means the current device."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _zeros_like(fake: Fake) -> torch.Tensor:
    facts = fake.facts
    zeros = torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype)
    return zeros.zero_() if not facts.has_internal_overlap() else zeros


def _map_tensors(value: Any, change: Callable[[Any], Any], found: list[Any]) -> Any:
    """`value` with each tensor in it changed; the results are collected in `found`."""
    if isinstance(value, torch.Tensor):
        changed = change(value)
        found.append(changed)
        return changed
    if isinstance(value, (list, tuple)):
        return type(value)([_map_tensors(item, change, found) for item in value])
    if isinstance(value, dict):
        return {name: _map_tensors(item, change, found) for name, item in value.items()}
    return value


# -- facts about operations --------------------------------------------------------------------


class _OpFacts:
    """What the dispatcher must know of one operation, read once from its schema and tags."""

    __slots__ = (
        "changes_facts", "data_dependent", "draws", "func", "pointwise", "rule", "special",
        "takes_device", "takes_generator",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        names = {argument.name for argument in func._schema.arguments}
        tags = func.tags
        self.func = func
        self.takes_device = "device" in names
        self.takes_generator = "generator" in names
        self.changes_facts = torch.Tag.inplace_view in tags
        self.draws = torch.Tag.nondeterministic_seeded in tags
        self.data_dependent = (
            torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        )
        self.special = _SPECIAL.get(func)
        self.rule = SHAPE_RULES.get(func)
        self.pointwise = torch.Tag.pointwise in tags
        if self.rule is None and self.pointwise:
            self.rule = pointwise_outcome(func)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, dict(kwargs)

    def refuse(self, args: tuple[Any, ...]) -> None:
        """Raises where the outcome does not follow from the facts."""
        if self.func in _RESIZES:
            raise NoFakeKernel(self.func, RESIZED)
        if self.func.name().startswith(_MAKES_QUANTISED):
            raise NoFakeKernel(self.func, "quantised tensors are not modelled")
        if self.func is aten.repeat_interleave.Tensor:
            raise DataDependent(self.func)
        if self.data_dependent and self.func not in _STATIC_DESPITE_TAG:
            raise DataDependent(self.func)


_RESIZES: frozenset[Any] = frozenset(
    {
        aten.resize_.default,
        aten.resize_as_.default,
        aten.set_.default,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
        aten.set_.source_Tensor,
        aten.set_.source_Tensor_storage_offset,
    }
)

_MAKES_QUANTISED = ("aten::quantize_per_", "aten::_make_per_", "aten::_empty_")

# Tagged dynamic for masks as indices or for data that decide only in some calls; those calls are
# sorted out by the entries of _SPECIAL.
_STATIC_DESPITE_TAG: frozenset[Any] = frozenset({aten.index.Tensor})


def _lift(world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor(...)` of the program: remember the value."""
    source = args[0]
    if type(source) is Fake:
        return NotImplemented
    fake = world.make(world.cache.facts_of(source, source.device))
    if source.numel() <= 64:
        fake.__dict__["constant"] = (source.clone(), fake._version)
    return fake


def _item(world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    if type(source) is Fake:
        constant = source.constant
        if constant is None or constant[1] != source._version:
            raise DataDependent(func)
        return constant[0].item()
    return source.item()


def _index(world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            raise DataDependent(func)
    return NotImplemented


def _pinned(world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    raise NoFakeKernel(func, "whether memory is pinned is not modelled")


def _calls_operators(
    world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Its kernel calls operators that autocast knows, so its result has another dtype under it."""
    if world.autocast:
        raise NoFakeKernel(func, "autocast changes the operators that it calls")
    return NotImplemented


def _detach(world: FakeWorld, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    return world.make(source.facts, source.token) if type(source) is Fake else NotImplemented


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.lift_fresh.default: _lift,
    aten._local_scalar_dense.default: _item,
    aten.index.Tensor: _index,
    aten.is_pinned.default: _pinned,
    aten._transformer_encoder_layer_fwd.default: _calls_operators,
    aten._native_multi_head_attention.default: _calls_operators,
    aten.detach.default: _detach,
    aten.alias.default: _detach,
}
