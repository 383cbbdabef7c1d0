"""Triton kernels of the program as operators of torch, so that graphs can hold their calls.

In: a kernel (`triton.jit`, `triton.autotune`, `triton.heuristics`) and what is known of one call:
which arguments are tensors, which numbers, which constants. Out: an operator that takes the
tensors, the numbers and the grids, and launches the kernel. Its schema says what it writes; nothing
follows from calling it but this. Equal calls have one operator.

A descriptor that the host makes (`TensorDescriptor`) is a tensor, two lists of sizes and constants
to the operator, which makes an equal one at each launch: so the graph knows what is written through
it, and the checks of its alignment are those of the tensor that is there then.

Triton is not imported here: whoever has such a kernel has imported it.
"""

from __future__ import annotations

import collections
import hashlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.graph_operators.kernel_writes import written_names
from dynamo.graph_operators.later_launches import later_launches
from dynamo.graph_operators.written_operators import twin_of

NAMESPACE = "dynamo_kernels"
KINDS = {
    "tensor": ("Tensor",), "int": ("SymInt",), "float": ("float",), "bool": ("bool",),
    "descriptor": ("Tensor", "SymInt[]", "SymInt[]"),
}  # fmt: skip
DIMENSIONS = 3  # of a grid
DESCRIPTORS = "triton.tools.tensor_descriptor", "TensorDescriptor"
CLASSES = (
    ("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"),
    ("triton.runtime.autotuner", "Autotuner"), ("triton.runtime.autotuner", "Heuristics"),
)  # fmt: skip


@dataclass(frozen=True)
class KernelCall:
    """What one line of the program says of a call. names, kinds: the arguments that are known at a
    call only; constants: the others, launch options too; grids: the parameters that each given grid
    belongs to, with their values (one empty tuple where the grid is the same for all); blocks: of
    each descriptor among the names, its block's shape and its padding."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    grids: tuple[tuple[tuple[str, Any], ...], ...]
    blocks: tuple[tuple[str, tuple[tuple[int, ...], str]], ...] = ()


# A module, the kernel's name in it, and the call.
Recipe = tuple[str, str, KernelCall]


class Operators:
    """The operators of this process."""

    def __init__(self) -> None:
        self._library: Any = None
        self._lock = threading.Lock()
        self._by_call: dict[Any, tuple[Any, Any]] = {}
        self._names: collections.Counter[str] = collections.Counter()

    def of(self, kernel: Any, call: KernelCall) -> Any:
        """The operator for one kind of call of a kernel."""
        constants, grids = key_of(call.constants), key_of(call.grids)
        key = id(kernel), call.names, call.kinds, constants, grids, call.blocks
        with self._lock:
            if key not in self._by_call:  # which keeps the kernel and the constants: their ids hold
                made = self._define(kernel, call)
                self._by_call[key] = (kernel, call), made
            return self._by_call[key][1]

    def _define(self, kernel: Any, call: KernelCall) -> Any:
        if self._library is None:
            self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        function = function_of(kernel)
        written = written_names(function) if function is not None else None
        schema = schema_text(call, written)
        name = self._new_name(name_of(kernel, call, schema))
        self._library.define(name + schema)
        self._implement(name, kernel, call, schema)
        self._library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _nothing, lib=self._library)
        operator = getattr(getattr(torch.ops, NAMESPACE), name).default
        twin_of(operator)
        return operator

    def _new_name(self, name: str) -> str:
        """Kernels that a function of the program makes may be called alike, as may calls with
        objects that have no text."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"

    def _implement(self, name: str, kernel: Any, call: KernelCall, schema: str) -> None:
        """By Triton, or by what C++ knows of earlier launches."""
        slow = f"{name}_by_triton"
        self._library.define(slow + schema)
        later = later_launches(
            (NAMESPACE, name), slow, call.names, call.kinds, dict(call.constants),
            layers_of(kernel))
        launch = launcher(kernel, call, None if later is None else later.keep)
        self._library.impl(slow if later else name, launch, "CompositeExplicitAutograd")
        self._library.impl(slow, torch.library.fallthrough_kernel, "Autograd")


    def recipe_of(self, operator: Any) -> Recipe:
        """How another process defines the operator. Errors: LookupError for a kernel that no module
        has by its name, and for constants that have no text."""
        kernel, call = next(given for given, made in self._by_call.values() if made is operator)
        module, name = place_of(kernel)
        if not is_plain((call.constants, call.grids)):
            raise LookupError(f"{operator} has constants that are objects")
        return module, name, call

    def define_again(self, recipe: Recipe) -> Any:
        """The operator of a recipe. Errors: LookupError."""
        module, name, call = recipe
        kernel = vars(sys.modules.get(module) or object).get(name)
        if not is_kernel(kernel):
            raise LookupError(f"{module} has no kernel {name} now")
        return self.of(kernel, call)


operators = Operators()


def is_kernel(value: Any) -> bool:
    """Whether Triton launches it."""
    return any(type(value) is getattr(sys.modules.get(module), name, None)
               for module, name in CLASSES)  # fmt: skip


def place_of(kernel: Any) -> tuple[str, str]:
    """The module and the name by which it has the kernel. Errors: LookupError."""
    function = function_of(kernel)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if vars(sys.modules.get(module) or object).get(name) is not kernel:
        raise LookupError(f"no module has the kernel {module}.{name}")
    return module, name


def is_plain(value: Any) -> bool:
    """Whether a constant has a text."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str, torch.dtype)


def text_of_kernel(kernel: Any) -> str:
    """What a trace reads of a kernel beside its function."""
    layers = [(type(layer).__qualname__, hooks_of(layer)) for layer in layers_of(kernel)]
    return f"kernel {layers} {parameters_of(kernel)} {_text_of(configurations(kernel))}"


def key_of(value: Any) -> Hashable:
    """What tells one constant from another. Objects differ even where their texts are equal."""
    if isinstance(value, tuple | list):
        return type(value), tuple(map(key_of, value))
    if value is None or type(value) in (bool, int, float, str, torch.dtype):
        return type(value), repr(value)  # 0.0 is not -0.0
    return type(value), id(value)


def name_of(kernel: Any, call: KernelCall, schema: str) -> str:
    """The operator's name: another process calls it the same, so that it finds compiled code."""
    function = function_of(kernel)
    place = [getattr(function, name, "") for name in ("__module__", "__qualname__")]
    layers = [type(layer).__qualname__ for layer in layers_of(kernel)]
    parts = (place, layers, call.names, _text_of(call.constants), _text_of(call.grids), call.blocks)
    short = re.sub(r"\W", "_", getattr(function, "__name__", "kernel"))
    return f"{short}_{hashlib.sha256(repr((parts, schema)).encode()).hexdigest()[:10]}"


def _text_of(value: Any) -> str:
    """Of constants; of objects only what they are."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} {list(map(_text_of, value))}"
    return repr(value) if is_plain(value) else type(value).__qualname__


def is_descriptor(cls: type) -> bool:
    """True for Triton's class of descriptors that the host makes."""
    return cls is getattr(sys.modules.get(DESCRIPTORS[0]), DESCRIPTORS[1], None)


def _nothing(*args: Any) -> None:
    return None


def schema_text(call: KernelCall, written: frozenset[str] | None) -> str:
    """`(Tensor(a0!) p0, SymInt p1, SymInt[] grid) -> ()`."""
    parts = list[str]()
    for name, kind in zip(call.names, call.kinds, strict=True):
        for text in KINDS[kind]:
            n = len(parts)
            writes = text == "Tensor" and (written is None or name in written)
            parts.append(f"{text}{f'(a{n}!)' if writes else ''} p{n}")
    return f"({', '.join([*parts, 'SymInt[] grid'])}) -> ()"


def launcher(
    kernel: Any, call: KernelCall, keep: Callable[[Any, int], object] | None = None
) -> Callable[..., None]:
    """What the operator does. keep: takes what Triton has run, and which grid that had."""
    constants = dict(call.constants)
    numbers = {tuple(value for _, value in grid): n for n, grid in enumerate(call.grids)}
    chosen_by = tuple(name for name, _ in call.grids[0])
    blocks = dict(call.blocks)

    def launch(*args: Any) -> None:
        *given, sizes = args
        values = iter(given)
        named = {
            name: next(values) if kind != "descriptor" else descriptor(values, *blocks[name])
            for name, kind in zip(call.names, call.kinds, strict=True)
        }
        grids = [tuple(sizes[n : n + DIMENSIONS]) for n in range(0, len(sizes), DIMENSIONS)]
        number = 0

        def grid(meta: Any) -> tuple[int, ...]:
            nonlocal number
            number = numbers[tuple(meta[name] for name in chosen_by)]
            return grids[number]

        compiled = kernel[grid if chosen_by else grids[0]](**named, **constants)
        if keep is not None:
            keep(compiled, number)

    return launch


def descriptor(values: Iterator[Any], block: tuple[int, ...], padding: str) -> Any:
    """A descriptor of the next three values. Errors: AssertionError for a tensor or sizes that
    Triton does not take, as where the program makes one."""
    made = getattr(sys.modules[DESCRIPTORS[0]], DESCRIPTORS[1])
    base, shape, strides = next(values), list(next(values)), list(next(values))
    return made(base, shape, strides, list(block), padding)


def function_of(kernel: Any) -> Any:
    """The Python function of a kernel, below what autotunes it or computes arguments of it."""
    seen = 0
    while not inspect.isfunction(kernel) and hasattr(kernel, "fn") and seen < 8:
        kernel, seen = kernel.fn, seen + 1
    return kernel if inspect.isfunction(kernel) else None


def layers_of(kernel: Any) -> list[Any]:
    """What is wrapped around the Python function, from outside."""
    found = [kernel]
    while hasattr(found[-1], "fn") and len(found) < 8:
        found.append(found[-1].fn)
    return found[:-1]


def hooks_of(layer: Any) -> bool:
    """True where Python functions of the user's run at each launch."""
    return bool(getattr(layer, "pre_run_hooks", None)) or bool(
        getattr(layer, "user_defined_pre_hook", False)
        or getattr(layer, "user_defined_post_hook", False))


def parameters_of(kernel: Any) -> dict[str, bool]:
    """The kernel's parameters; True for those that are constants of its code."""
    parameters = getattr(kernel, "params", None) or getattr(layers_of(kernel)[-1], "params", None)
    if parameters is not None:
        return {p.name: bool(p.is_constexpr) for p in parameters}
    hints = function_of(kernel).__annotations__  # an interpreted one
    names = layers_of(kernel)[-1].arg_names
    return {name: "constexpr" in str(hints.get(name, "")) for name in names}


def configurations(kernel: Any) -> list[tuple[tuple[str, Any], ...]]:
    """The parameters that each configuration of `triton.autotune` sets."""
    for layer in layers_of(kernel):
        configs = getattr(layer, "configs", None)
        if configs:
            return [tuple(config.kwargs.items()) for config in configs]
    return [()]


def defaults_of(kernel: Any) -> dict[str, Any]:
    """Constants that the kernel's signature has."""
    defaults = function_of(kernel).__defaults__ or ()
    names = list(parameters_of(kernel))
    return dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
