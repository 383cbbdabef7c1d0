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

from collections.abc import Callable
from typing import Any

import torch

from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.errors import Signal
from dynamo.base.ragged_sizes import keep_ragged_size
from dynamo.base.subclasses import is_elsewhere, is_foreign, is_wrapper_class
from dynamo.base.value_types import CONSTANTS
from dynamo.graph_operators import traced_collectives
from dynamo.graph_operators.written_operators import gives_nothing
from dynamo.shapes import by_device, meta_kernels, reference_kernels
from dynamo.shapes.constants import Constants
from dynamo.shapes.facts import Facts, Fresh, OpCache, Outcome, Plain, Same, Several, View
from dynamo.shapes.fake_tensor import (
    DataDependent,
    Fake,
    NoFakeKernel,
    NotSymbolic,
    StorageToken,
    Undecided,
    Unprintable,
)
from dynamo.shapes.observable import observable_effects
from dynamo.shapes.operations import RESIZED, OpFacts, common_device, with_index
from dynamo.shapes.recurrent import STEPS
from dynamo.shapes.refusals import REFUSALS, refused
from dynamo.shapes.spectra import SPECTRA

__all__ = [
    "DataDependent", "Fake", "FakeWorld", "NoFakeKernel", "NotSymbolic", "StorageToken",
    "Undecided", "Unprintable", "give_history", "has_outer_history",
]
OpOverload = torch._ops.OpOverload
aten = torch.ops.aten
OWN_STEPS = {**STEPS, **SPECTRA}
meta_kernels.register()
reference_kernels.run_as_they_are()


class _NonLeaf(torch.autograd.Function):
    """Gives a fake a history, as a tensor has that some other computation made."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, make: Callable[[], Fake]) -> Fake:
        ctx.set_materialize_grads(False)  # none stays none
        return make()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def give_history(real: torch.Tensor, make: Callable[[], Any]) -> Any:
    """A fake with the autograd state of the real tensor: requires_grad, is_leaf.

    Errors: NoFakeKernel where torch does not tell it.
    """
    if not real.requires_grad:
        return make()
    try:
        leaf = real.is_leaf
    except RuntimeError as error:  # of a view made in inference mode, whose base has changed
        raise NoFakeKernel("from_real", str(error).split(".")[0]) from error
    if leaf:
        return make().requires_grad_()
    with torch.enable_grad():
        return _NonLeaf.apply(make().requires_grad_(), make)


def has_outer_history(node: Any) -> bool:
    """True for the place in autograd's graph where `give_history` began."""
    return isinstance(node, _NonLeaf._backward_cls)  # type: ignore[attr-defined]


class _WorldMode(OwnDispatchMode):
    """Sends every ATen call, factories included, to its world."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self.world = world

    def __enter__(self) -> Any:
        traced_collectives.enter()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        traced_collectives.leave()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            self.world.meets_wrappers = True
            return NotImplemented
        if self.world.meets_wrappers and is_elsewhere():
            return func(*args, **(kwargs or {}))
        return self.world.dispatch(func, args, kwargs or {})


_SCALARS = frozenset(CONSTANTS)

_REPLAY_BYTES = 1 << 24
STRIDED = frozenset((aten.empty_strided.default, aten.new_empty_strided.default))


class _Uncacheable(Exception):
    pass


# What torch says of an operator without a fake kernel, before a tutorial begins.
TORCH_MESSAGES = ("no fake impl registered", "no fake impl or Meta kernel", "'Meta' backend")
NO_KERNEL = "it has no fake kernel"


def _why_not(error: Exception) -> str:
    """What torch says of a failed fake kernel, as one sentence."""
    text = str(error)
    if any(message in text for message in TORCH_MESSAGES):
        return NO_KERNEL
    return text.split("\n")[0]


class FakeWorld:
    """The fake tensors of one compile, and the rules by which operations run on them.

    cache: share one between the worlds of a compile; a world has its own otherwise.
    observed: what may be observed of the operations that have run, see `dynamo.shapes.observable`.
    """

    is_symbolic = False
    meets_wrappers = False  # an operation on a wrapper subclass has run

    def __init__(self, cache: OpCache | None = None) -> None:
        self.cache = cache if cache is not None else OpCache()
        self.autocast = False
        self.constants = Constants(
            Fake, lambda fake: fake.storage_key, lambda fake: fake.token)
        self.observed: set[str] = set()
        self._mode = _WorldMode(self)
        self._from_real: dict[int, tuple[torch.Tensor, Fake]] = {}
        self._storages: dict[int, StorageToken] = {}
        self._ops: dict[Any, OpFacts] = {}

    # -- entering ------------------------------------------------------------------------------

    def __enter__(self) -> FakeWorld:
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._mode.__exit__(*raised)

    def constant_of(self, fake: Fake) -> torch.Tensor | None:
        """The value of a fake that was made of constants of the program: who asks decides by it."""
        known = self.constants.value(fake)
        self.constants.times_read += known is not None
        return known

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)` with this world active."""
        # not to be seen from inside of an operator
        self.autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self.constants.autocast = self.autocast
        with self._mode:
            return OWN_STEPS.get(fn, fn)(*args, **kwargs)

    # -- making fakes --------------------------------------------------------------------------

    def forget_reals(self) -> None:
        """Lets go of the real tensors: fakes keep their world alive."""
        self._from_real.clear()

    def from_real(self, tensor: torch.Tensor) -> Fake:
        """The fake of a real tensor: always the same one for the same object.

        Tensors that share a storage give fakes that share one. `isinstance(fake, nn.Parameter)`
        holds where it holds for the tensor; `is_leaf` and `requires_grad` agree. It has no `grad`:
        a tensor that another one holds as its gradient is outside of what Python collects, and so
        would be all that a world knows.
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
        if is_wrapper_class(type(tensor)):
            raise NoFakeKernel("from_real", f"a {type(tensor).__qualname__} is made of others")
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise NoFakeKernel("from_real", "a tensor inside a torch.func transform")
        with torch._C._DisableTorchDispatch():
            fake = self._imitate(tensor)
        self._from_real[id(tensor)] = (tensor, fake)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]
        return fake

    def _imitate(self, tensor: torch.Tensor) -> Fake:
        facts = self.cache.facts_of(tensor, tensor.device)
        storage = tensor.untyped_storage()
        token = self._storages.get(storage._cdata)
        if token is None:
            token = StorageToken(storage.nbytes())
            self._storages[storage._cdata] = token
        return give_history(tensor, lambda: self.make(facts, token))

    def ragged_size(self, fake: Fake, number: torch.SymInt) -> torch.SymInt:
        """The ragged size of nested tensors with these offsets (or lengths), that of a real one."""
        keep_ragged_size(fake, number)
        return number

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
        if facts.bits:
            torch._C._set_conj(fake, facts.is_conj)
            torch._C._set_neg(fake, facts.is_neg)
        return fake

    # -- running operations ----------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen call. Called with no dispatch mode active."""
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = OpFacts(func)
        if op.observed:
            self.observed |= observable_effects(func, args, kwargs)
        result = self._run(op, args, kwargs)
        self.constants.follow(func, op.role, args, kwargs, result)
        return result

    def _run(self, op: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = op.func
        if op.sized_by_values(args, kwargs):
            found = self.constants.settle(func, args, kwargs)
            if found is None:
                raise DataDependent(func)
            made = [self.make(self.cache.facts_of(value, value.device)) for value in found]
            for fake, value in zip(made, found, strict=True):
                self.constants.learn(fake, value)
            return tuple(made) if len(func._schema.returns) > 1 else made[0]
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
            return self._miss(op, args, kwargs, key)
        self.cache.hits += 1
        return self._replay(outcome, fakes)

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
        self, op: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> Any:
        op.refuse(args)
        fakes: list[Fake] = []
        plain_args, plain_kwargs = op.bind(_map_tensors(args, self.from_real, fakes), kwargs)
        plain_kwargs = _map_tensors(plain_kwargs, self.from_real, fakes)
        refusal = REFUSALS.get(op.func)
        if refusal is not None and refusal(plain_args):
            self._raise_as_eager(op, plain_args, plain_kwargs, refused(op.func))
        outcome = None
        if op.rule is not None:
            outcome = op.rule(self.cache, op.func, plain_args, plain_kwargs)
        if outcome is not None:
            if key is not None:
                self.cache.outcomes[key] = outcome
            return self._replay(outcome, fakes)
        device = self._output_device(op, plain_kwargs, fakes)
        metas: list[torch.Tensor] = []
        meta_args = _map_tensors(plain_args, lambda fake: fake.meta_tensor, metas)
        meta_kwargs = _map_tensors(plain_kwargs, lambda fake: fake.meta_tensor, metas)
        if op.takes_device:
            meta_kwargs["device"] = torch.device("meta")
            if meta_kwargs.get("pin_memory"):
                meta_kwargs["pin_memory"] = False
        if "generator" in meta_kwargs:
            meta_kwargs["generator"] = None  # there is none for the meta device
        run: Callable[..., Any] = op.func
        if device.type != "cpu" and op.func in by_device.OPERATORS:
            run = lambda *args, **kwargs: by_device.results(op.func, args, kwargs, device)  # noqa: E731
        result = self._run_meta(run, op, meta_args, meta_kwargs, plain_args, plain_kwargs)
        if op.changes_facts:
            return self._change_facts(metas, fakes)
        self._refuse_resized(op, metas, fakes)
        outcome = self._outcome_of(op.func, result, metas, device)
        if key is not None and outcome is not None:
            self.cache.outcomes[key] = outcome
            return self._replay(outcome, fakes)
        if outcome is None:
            raise NoFakeKernel(op.func, "outputs that share a storage of their own")
        return self._replay(outcome, fakes)

    def _run_meta(
        self, run: Callable[..., Any], op: OpFacts, meta_args: Any, meta_kwargs: Any, args: Any,
        kwargs: Any,
    ) -> Any:
        func = op.func
        try:
            return run(*meta_args, **meta_kwargs)
        except NotImplementedError as error:
            if gives_nothing(func):
                return None
            decomposition = torch._decomp.decomposition_table.get(func)
            if decomposition is None:
                raise NoFakeKernel(func, _why_not(error)) from None
            try:
                return decomposition(*meta_args, **meta_kwargs)
            except Exception as inner:
                raise NoFakeKernel(func, f"its decomposition failed: {inner}") from None
        except Signal:
            raise
        except Exception as error:
            if TORCH_MESSAGES[0] in str(error):
                if gives_nothing(func):
                    return None
                raise NoFakeKernel(func, NO_KERNEL) from None
            self._raise_as_eager(op, args, kwargs, error)
            raise NoFakeKernel(
                func, f"its meta kernel failed where eager does not: {error}"
            ) from None

    def _raise_as_eager(self, op: OpFacts, args: Any, kwargs: Any, error: Exception) -> None:
        """Repeats a failed operation on zeros, so that eager's own exception is raised."""
        fakes: list[Fake] = []
        _map_tensors((args, kwargs), lambda fake: fake, fakes)
        if sum(fake.facts.nbytes for fake in fakes) > _REPLAY_BYTES:
            raise error
        real_args = _map_tensors(args, _zeros_like, [])
        real_kwargs = _map_tensors(kwargs, _zeros_like, [])
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        if "generator" in real_kwargs:
            real_kwargs["generator"] = None
        with torch.random.fork_rng(devices=()):  # the program's own numbers come after
            op.func(*real_args, **real_kwargs)

    def _outcome_of(
        self, func: Any, result: Any, metas: list[torch.Tensor], device: torch.device
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
            if facts.has_internal_overlap() and func not in STRIDED:
                dense = torch.empty_like(result)  # what meta kernels of torch 2.11 say of scatters
                return Fresh(self.cache.facts_of(dense, device))
            return Fresh(facts)
        if isinstance(result, (list, tuple)):
            items = [self._outcome_of(func, item, metas, device) for item in result]
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

    def _change_facts(self, metas: list[torch.Tensor], fakes: list[Fake]) -> Any:
        """`t_`, `squeeze_`, ...: the fake itself gets other sizes, on the same storage."""
        fake, meta = fakes[0], metas[0]
        facts = self.cache.facts_of(meta, fake.device)
        with torch._C._DisableTorchDispatch():
            torch.Tensor.as_strided_(fake, facts.size, facts.stride, facts.offset)
        fake.__dict__["facts"] = facts
        return fake

    def _refuse_resized(
        self, op: OpFacts, metas: list[torch.Tensor], fakes: list[Fake]
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
        self, op: OpFacts, kwargs: dict[str, Any], fakes: list[Fake]
    ) -> torch.device:
        if op.takes_device:
            wanted = kwargs.get("device")
            if wanted is not None:
                return with_index(torch.device(wanted))
            return fakes[0].device if fakes else torch.device("cpu")
        return common_device(op.func, fakes)


def _zeros_like(fake: Fake) -> torch.Tensor:
    facts = fake.facts
    zeros = torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype)
    return zeros.zero_() if not facts.has_internal_overlap() else zeros


def _map_tensors(value: Any, change: Callable[[Any], Any], mapped: list[Any]) -> Any:
    """`value` with each tensor in it changed; the results are collected in `mapped`."""
    if isinstance(value, torch.Tensor):
        changed = change(value)
        mapped.append(changed)
        return changed
    if isinstance(value, (list, tuple)):
        return type(value)([_map_tensors(item, change, mapped) for item in value])
    if isinstance(value, dict):
        return {name: _map_tensors(item, change, mapped) for name, item in value.items()}
    return value
