"""Launches of a Triton kernel that Triton has launched like this before, without Python.

In: a kernel's layers, and the arguments of one line of the program. Out: the operator's
implementation in C++ (`csrc/kernel_launches.cpp`), if there can be one. It calls a second operator,
which goes through Triton, wherever it does not know a launch. Behind that, what Triton has compiled
is handed to it, for later calls of which all is the same that Triton would ask: the device, dtypes,
whether tensors lie at multiples of 16 bytes, whether numbers are 1, multiples of 16 and fit into 32
bits; the numbers themselves where `triton.autotune` chooses by them, and the sizes and strides of
tensors, too, where functions of `triton.heuristics` compute constants of arguments.

Triton always launches what needs more than the driver (a launcher's scratch memory, clusters,
descriptors of the host), what runs functions of the program's at each launch (hooks of kernels,
configurations, or Triton itself, as profilers have), and kernels of classes that are not
Triton's own. What the program may change between calls is watched: hooks, Triton's settings for
debugging, and global names that the kernel's code has read.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo._C import keep_launch, launch_operator
from dynamo.base.compiled_kernels import WARP, driver_launch, is_simple

CODES = {"tensor": "t", "int": "i", "float": "f", "bool": "b"}
# What arguments of each kind are to the kernel.
TYPES = {"int": ("i32", "i64"), "float": ("fp32", "fp64"), "bool": ("u1", "i1")}
SETTINGS = {  # of `triton.knobs`, which Triton asks in each launch
    "runtime": ("launch_enter_hook", "launch_exit_hook", "debug"),
    "compilation": ("instrumentation_mode",),
}
HOOKS = SETTINGS["runtime"][:2]
FIXED = (int, float, bool, str, type(None))
# What functions of `triton.heuristics` may name, where a key is to hold all that they read.
MODULES = ("triton", "math", "torch")
BUILTINS = frozenset("min max abs len int bool isinstance".split())
PLAIN = frozenset("""
    cdiv next_power_of_2 Tensor float16 bfloat16 float32 float64 log2 ceil floor shape stride size
    numel dim ndim dtype is_contiguous
""".split())
Parameters = tuple[tuple[int, bool, int], ...]
Watched = tuple[tuple[dict[Any, Any], Any], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels are launched. current_device and current_stream: as Triton's driver asks for
    them; start: gives the address of the driver's function; on_cuda: where tensors have to be."""

    current_device: Any
    current_stream: Any
    start: Any = driver_launch
    on_cuda: bool = True


@dataclass(frozen=True, slots=True)
class LaterLaunches:
    """The launches of an operator that C++ knows; see the top of the file."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    fixed: Mapping[str, Any]
    layers: Sequence[Any]
    place: Place
    known: Any

    def keep(self, compiled: Any, grid: int) -> bool:
        """Launch later calls like this one without Triton. compiled: what Triton has just run;
        grid: which of the call's grids it had. Whether they will be."""
        parameters = self._parameters(compiled)
        watched = self._watched()
        hooks = [getattr(hook, "calls", None) for hook in _hooks()]
        empty = (*hooks, self.layers[-1].pre_run_hooks)
        if parameters is None or watched is None or any(one != [] for one in empty):
            return False
        facts = compiled.metadata
        return keep_launch(
            self.known, compiled, self.place.start(), compiled.function, facts.num_warps * WARP,
            facts.shared, grid, parameters, watched, empty)

    def _parameters(self, compiled: Any) -> Parameters | None:
        """Which arguments the kernel takes, in its order; None for what Triton has to launch."""
        target = getattr(getattr(compiled, "metadata", None), "target", None)
        if getattr(target, "backend", "") != "cuda" or not is_simple(compiled):
            return None
        if type(getattr(compiled, "function", None)) is not int:
            return None
        function, types = self.layers[-1], compiled.src.signature
        if list(types) != list(function.arg_names):
            return None
        found = [self._parameter(name, types[name], function.signature.parameters[name].default)
                 for name in types if types[name] != "constexpr"]
        return None if None in found else tuple(found)  # type: ignore[arg-type]

    def _parameter(self, name: str, kernel_type: Any, default: Any) -> tuple[int, bool, int] | None:
        if name in self.names:
            at = self.names.index(name)
            kind = self.kinds[at]
            fits = str(kernel_type).startswith("*") if kind == "tensor" else \
                kernel_type in TYPES[kind]
            return (at, kernel_type == "fp32", 0) if fits else None
        if any(name in names for names in map(_names_set_by, self.layers)):
            return None
        value = self.fixed.get(name, default)
        kind = type(value).__name__
        if kernel_type not in TYPES.get(kind, ()):
            return None
        bits = struct.unpack("q", struct.pack("d", value))[0] if kind == "float" else int(value)
        return -1, kernel_type == "fp32", bits

    def _watched(self) -> Watched | None:
        """Entries of dicts of which a launch depends; None where something may change unseen."""
        knobs = sys.modules["triton.knobs"]
        settings = [(vars(getattr(knobs, part)), name)
                    for part, names in SETTINGS.items() for name in names]
        own = [(vars(layer), "run") for layer in self.layers]
        chosen = [(vars(config), "pre_hook") for layer in self.layers
                  for config in getattr(layer, "configs", ())]
        names = [(scope, name)
                 for (name, _), (_, scope) in self.layers[-1].used_global_vals.items()]
        if not all(_is_fixed(scope.get(name)) for scope, name in names):
            return None
        if knobs.runtime.debug or knobs.compilation.instrumentation_mode:
            return None
        return *settings, *own, *chosen, *names


def later_launches(
    operator: tuple[str, str], slow: str, names: tuple[str, ...], kinds: tuple[str, ...],
    fixed: Mapping[str, Any], layers: Sequence[Any], place: Place | None = None,
) -> LaterLaunches | None:
    """Implements the operator of this namespace and name by launches that are known, and by that
    called `slow` where there is none; None where `slow` has to do all. names, kinds: of the
    arguments; fixed: those that are the same in all calls, by name; layers: the kernel and what it
    wraps, from outside."""
    if "descriptor" in kinds or not _may_be_known(layers):
        return None
    tensors = {name for name, kind in zip(names, kinds, strict=True) if kind == "tensor"}
    if any(_depends_on_more(layer, tensors, {*names, *fixed}) for layer in layers[:-1]):
        return None
    place = _cuda() if place is None else place
    if place is None:
        return None
    guessed = any(map(_is_heuristic, layers))
    chosen_by = {key for layer in layers if len(getattr(layer, "configs", ())) > 1
                 for key in layer.keys}
    exact = tuple(guessed or one in chosen_by for one in names)
    known = launch_operator(
        *operator, slow, "".join(CODES[kind] for kind in kinds), exact, guessed, place.on_cuda,
        place.current_device, place.current_stream)
    return LaterLaunches(names, kinds, fixed, layers, place, known)


def _cuda() -> Place | None:
    """None for a torch without CUDA."""
    device = getattr(torch._C, "_cuda_getDevice", None)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return None if device is None or stream is None else Place(device, stream)


def _may_be_known(layers: Sequence[Any]) -> bool:
    """Whether the classes are those whose launches this file knows."""
    *wrappers, function = layers
    if not all(hasattr(hook, "calls") for hook in _hooks()):
        return False
    attributes = (("pre_run_hooks", list), ("used_global_vals", dict),
                  ("signature", inspect.Signature))
    return _is(function, "triton.runtime.jit", "JITFunction") and all(
        isinstance(getattr(function, name, None), kind) for name, kind in attributes
    ) and all(_is_heuristic(one) or _is(one, "triton.runtime.autotuner", "Autotuner")
              for one in wrappers)


def _depends_on_more(layer: Any, tensors: set[str], given: set[str]) -> bool:
    """Whether a wrapper does more in a launch than to choose constants by what a key holds."""
    if _is_heuristic(layer):
        return not given.isdisjoint(layer.values) or not all(map(_is_plain, layer.values.values()))
    hooks = layer.user_defined_pre_hook or layer.user_defined_post_hook or any(
        config.pre_hook is not None for config in layer.configs)
    return bool(not tensors.isdisjoint(layer.keys) or layer.reset_to_zero or layer.restore_value
                or hooks)


def _is_plain(function: Any) -> bool:
    """Whether a function of the arguments reads nothing but numbers, sizes, strides and dtypes."""
    if not inspect.isfunction(function):
        return False
    if function.__defaults__ or any(map(inspect.iscode, function.__code__.co_consts)):
        return False
    read = inspect.getclosurevars(function)
    modules = [sys.modules.get(name) for name in MODULES]
    return not read.nonlocals and all(value in modules for value in read.globals.values()) and \
        BUILTINS.issuperset(read.builtins) and PLAIN.issuperset(read.unbound)


def _is(layer: Any, module: str, name: str) -> bool:
    """Whether it is of Triton's class itself: what derives from it may do more."""
    return type(layer) is getattr(sys.modules.get(module), name, None)


def _is_heuristic(layer: Any) -> bool:
    return _is(layer, "triton.runtime.autotuner", "Heuristics")


def _hooks() -> Iterator[Any]:
    """Triton's chains of functions that run at each launch; None where there is no such chain."""
    runtime = getattr(sys.modules.get("triton.knobs"), "runtime", None)
    for name in HOOKS:
        yield getattr(runtime, name, None)


def _names_set_by(layer: Any) -> set[str]:
    """Parameters whose values a wrapper computes."""
    named = {name for config in getattr(layer, "configs", ()) for name in config.kwargs}
    return named | {*(layer.values if _is_heuristic(layer) else ())}


def _is_fixed(value: Any) -> bool:
    """Whether it can't be changed in place."""
    core = sys.modules["triton.language.core"]
    held = value.value if isinstance(value, core.constexpr) else value
    return type(held) in FIXED or isinstance(held, core.dtype | type)
