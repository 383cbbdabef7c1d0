"""What users call: `mode`, `tensor`, `mark_step`, `eager`, `metrics`, `explain`."""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import Any

import torch

from dynamo.backends.registry import Backend
from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.lazy import _C, scripted
from dynamo.lazy.record import BUSY, LOCK
from dynamo.lazy.recorder import ACTIVE, HOME, LONGEST, MODES, Recorder, arm, enter, set_modes
from dynamo.lazy.report import REPORT, End, Metrics
from dynamo.lazy.tensor import Hooks, LazyTensor, wrap
from dynamo.lazy.values import Value, expose, facts_of, is_plain
from dynamo.lazy.watch import Watch

DEVICES = ("cpu", "cuda")
RECORDERS: dict[Hashable, Recorder] = {}


class _Dispatch(OwnDispatchMode):
    """Sends every operation to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return enter(self.recorder, func, args, kwargs or {}, True)


class mode:  # noqa: N801
    """Inside, operations are recorded, and run as compiled graphs when somebody looks.

    device: "cpu" or "cuda", the tensors whose operations are recorded; None is both. backend: a
    name or a callable, as for `dynamo.compile`. longest: a trace of so many operations ends.
    options: passed to the backend. At its end, all that was recorded runs; ordinary tensors that
    were written hold their values then.

    Errors: InvalidBackend, ValueError for a device that torch does not know, RuntimeError for one
    that is not there. LazyTensor paper, sections 3 and 4.

        >>> x = torch.ones(3)
        >>> with mode(backend="eager"):
        ...     y = x * 2 + 1
        >>> y.tolist()
        [3.0, 3.0, 3.0]
    """

    def __init__(
        self, device: str | None = None, backend: str | Backend = "inductor", *,
        longest: int = LONGEST, **options: Any,
    ) -> None:
        check_device(device)
        self.recorder = recorder_of(backend, device, longest, options)
        self.stack: list[tuple[_Dispatch, Recorder]] = []

    def __enter__(self) -> mode:
        inner = _Dispatch(self.recorder)
        scripted.install()
        with LOCK:
            self.stack.append((inner, HOME[0]))
            HOME[0] = self.recorder
            WATCH.enter()
        inner.__enter__()
        set_modes(MODES.append, inner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        inner, home = self.stack.pop()
        inner.__exit__(kind, error, trace)
        with LOCK:
            try:
                ACTIVE[0].cut("the end of lazy.mode")
            finally:
                HOME[0] = home
                set_modes(MODES.remove, inner)
                WATCH.leave()


def recorder_of(
    backend: str | Backend, device: str | None, longest: int, options: dict[str, Any]
) -> Recorder:
    """The one recorder of these settings: what it has compiled is used again."""
    key = (backend, device, longest, repr(sorted(options.items())))
    with LOCK:
        if key not in RECORDERS:
            RECORDERS[key] = Recorder(backend, device, longest, options)
        return RECORDERS[key]


def check_device(device: str | None) -> None:
    """Errors: ValueError, RuntimeError."""
    if device is None or device == "cpu":
        return
    if not isinstance(device, str) or device not in DEVICES:
        raise ValueError(f"dynamo.lazy.mode(device=...) takes 'cpu' or 'cuda', not {device!r}")
    if not torch.cuda.is_available():
        raise RuntimeError("dynamo.lazy.mode(device='cuda'): PyTorch finds no CUDA device here")


def tensor(x: torch.Tensor) -> LazyTensor:
    """A lazy copy of a tensor; what is computed from it is recorded, also outside of a mode.

    A leaf that requires gradients where x does. Errors: TypeError for what is no strided tensor.

        >>> x = tensor(torch.arange(3))
        >>> (x + 1).tolist()
        [1, 2, 3]
    """
    if isinstance(x, LazyTensor):
        return x
    if not isinstance(x, torch.Tensor) or not is_plain(x):
        raise TypeError(f"lazy.tensor takes a strided tensor, not {type(x).__name__}")
    scripted.install()
    with torch.no_grad(), torch.inference_mode(False), torch._C._DisableTorchDispatch():
        copy = x.detach().clone()
    made = wrap(Value(facts_of(copy), copy))
    return made.requires_grad_() if x.requires_grad else made  # type: ignore[return-value]


def eager(x: torch.Tensor) -> torch.Tensor:
    """The ordinary tensor that a lazy one stands for: the same memory, without its history.

        >>> type(eager(tensor(torch.ones(1)))).__name__
        'Tensor'
    """
    if not isinstance(x, LazyTensor):
        return x
    return Hooks.real(x, "untyped_storage")


def mark_step() -> None:
    """Ends the present trace and runs it: the end of a training step, where the next is like it.

    LazyTensor paper, section 4 (the barrier). Errors: those of the program's operators.
    """
    with LOCK:
        ACTIVE[0].cut("lazy.mark_step()")


def is_lazy(x: Any) -> bool:
    """True for a lazy tensor."""
    return isinstance(x, LazyTensor)


def metrics() -> Metrics:
    """Counts since the start or the last `lazy.reset()`."""
    return REPORT.metrics()


def explain() -> list[End]:
    """The ends of the last traces: the user's line, the reason, and how each was run."""
    return list(REPORT.ends)


def reset() -> None:
    """Runs what is recorded, and forgets counts and compiled graphs."""
    with LOCK:
        ACTIVE[0].cut("lazy.reset()")
        _C.start(None, False)
        for recorder in (*RECORDERS.values(), HOME[0]):
            recorder.forget()
        REPORT.reset()
        arm()


def _settle(name: str, tensor: torch.Tensor) -> None:
    """An ordinary tensor's memory is about to be read without a dispatch."""
    with LOCK:
        if BUSY[0]:
            return
        active = ACTIVE[0]
        if _C.on():
            met = _C.writes()[1] or _C.reads(tensor)
        else:
            met = active.trace.writes_ordinary or active.reads(tensor)
        if met:
            REPORT.count("looks")
            active.cut(f"{name} looks at a value")
        if name in ("numpy", "__array__", "__dlpack__", "share_memory_"):
            expose(tensor)


def _made_shared(x: Any) -> Any:
    """The tensor that an ordinary one shares from now on."""
    if not isinstance(x, LazyTensor):
        return x
    real = eager(x)
    x._lazy.borrowed = True
    return real


WATCH = Watch(_settle, _made_shared)
