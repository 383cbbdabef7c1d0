"""The key of a captured graph: all that decides what AOT and the backend make of it.

In: a captured graph, its example inputs, the options. Out: the parts of a key, as texts; or
`Uncacheable`, which names what has no text (an operator of the program, a tensor subclass, ..).
Nothing is left out that a stage asks for: a key that is too long costs a miss, one that is too
short gives a wrong program.
"""

from __future__ import annotations

import builtins
import functools
import math
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._C._autograd import _get_creation_meta  # type: ignore[attr-defined]
from torch._decomp import decomposition_table
from torch._library.simple_registry import singleton
from torch.fx.node import _get_qualified_name

from dynamo.aot.decompositions import FROM_TORCH, overload
from dynamo.aot.fakes import is_symbolic_number
from dynamo.aot.plain_graphs import At, FakeAt
from dynamo.aot.plain_sizes import SizeWriter
from dynamo.aot.records import Unsupported
from dynamo.base import ranks
from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION
from dynamo.base.config import config as dynamo_config
from dynamo.base.value_types import NAMED
from dynamo.shapes.facts import storage_bytes
from dynamo.store.gpu_facts import parts_of_gpus, settings_of_libraries
from dynamo.store.processor import processor
from dynamo.store.records import Uncacheable
from dynamo.store.versions import versions
from inductor.config import config
from inductor.runtime.gpu_properties import text_of_gpus

OWN = frozenset(("aten", "prims", "prim", "mkldnn", "dynamo_jit"))
TRUSTED = frozenset(("torch", "_operator", "operator", "math", "builtins", "dynamo", "inductor"))
PLAIN = frozenset((int, bool, str, type(None), bytes, complex, type(Ellipsis), At, FakeAt))
# In the meta of captured nodes, and read below capture.
MARKS = ("held_by_module",)
# In the meta of a module that was made of rows: its text, with symbols.
TEXT = "text_in_keys"
SHOWN = "example_value"
# Whose functions are known by the versions in the key.
FOLDERS = tuple([os.path.dirname(os.path.abspath(str(sys.modules[name].__file__))) + os.sep
                 for name in ("torch", "dynamo", "inductor")])
# Functions that become GEMMs, and those that may hold one. One that is missing here costs a join
# that fits (the operator looks at addresses itself), no wrong values.
GEMM = re.compile(r"linear|mm\b|matmul|einsum|tensordot|dot\b|multi_head|attention|lstm|gru|rnn|"
                  r"higher_order|\[placeholder")
ELSEWHERE = frozenset((
    "cache_dir", "cache_megabytes", "capture_cache", "disable", "verbose", "graph_cache",
    "background", "background_calls", "background_processes", "measure_seconds",
    "compile_on",
))


def parts_of_graph(
    gm: fx.GraphModule, examples: Sequence[Any], compiler: str
) -> dict[str, str]:
    """The parts of the key, under the present modes and settings. compiler: of C++ code.

    Errors: Uncacheable.
    """
    return {
        "inputs": _text_of_inputs(examples),
        **parts_around(_text_of_graph(gm), examples, compiler),
    }


def parts_of_symbolic(
    gm: fx.GraphModule, examples: Sequence[Any], compiler: str
) -> dict[str, str]:
    """The same for a graph that was captured for more than the sizes at hand, and of which what is
    compiled tells itself for which sizes it holds: these are no part of the key.

    Errors: Uncacheable.
    """
    text = gm.meta.get(TEXT) or text_of_symbolic(gm)
    return {
        "inputs": _text_of_inputs_for_sizes(text, examples),
        **parts_around(text, examples, compiler),
    }


def shows_symbols(gm: fx.GraphModule) -> bool:
    """Whether sizes or numbers among the inputs are symbols. Ints always are (see `Program`)."""
    return TEXT in gm.meta or any(
        is_symbolic_number(shown) or type(shown) is int or isinstance(shown, torch.Tensor) and any(
            map(is_symbolic_number, (*shown.shape, *shown.stride())))
        for shown in (node.meta.get(SHOWN) for node in gm.graph.find_nodes(op="placeholder")))


def text_of_symbolic(gm: fx.GraphModule) -> str:
    """The text of a graph whose inputs have symbolic sizes. Errors: Uncacheable."""
    try:
        return _text_of_graph(gm, SizeWriter())
    except Unsupported as refusal:
        raise Uncacheable(refusal.reason) from None


def parts_around(
    text: str, examples: Sequence[Any], compiler: str
) -> dict[str, str]:
    """The text of a graph, and what is no part of it. Errors: Uncacheable."""
    _check_registrations()
    return {
        "graph": text,
        **changing_parts(),
        **_parts_of_gpus(text, examples),
        **_parts_of_ranks(text),
        "processor": processor().text,
        "compiler": compiler,
        **versions(),
    }


def _parts_of_gpus(graph: str, examples: Sequence[Any]) -> dict[str, str]:
    """What a compile for a GPU asks for. A graph that is about to use the first one starts it."""
    if "cuda" in graph and torch.cuda.is_available():
        torch.cuda.init()
    parts = parts_of_gpus()
    if parts:
        parts["libraries"] = settings_of_libraries()
        parts["order"] = _order(graph, examples)
        parts["gpu properties"] = text_of_gpus()
    return parts


def _parts_of_ranks(graph: str) -> dict[str, str]:
    """What decides which collectives are sent together: how large groups are."""
    if not ranks.are_many():
        return {}
    groups = torch.distributed.distributed_c10d._world.pg_names
    sizes = {name: group.size() for group, name in groups.items() if repr(str(name)) in graph}
    return {"ranks": str(sorted(sizes.items()))}


def _order(graph: str, examples: Sequence[Any]) -> str:
    """Which matrices on a GPU lie directly behind another one: their GEMMs may be joined. Without
    a GEMM it doesn't matter, and a process puts what it allocates where there is room."""
    if not GEMM.search(graph):
        return "no GEMM"
    matrices = [(at, x) for at, x in enumerate(examples)
                if isinstance(x, torch.Tensor) and x.is_cuda and x.layout is torch.strided
                and x.dim() == 2 and x.is_floating_point() and x.is_contiguous()]  # fmt: skip
    ends = {x.data_ptr() + x.nbytes: at for at, x in reversed(matrices)}
    return repr([(ends[x.data_ptr()], at) for at, x in matrices if x.data_ptr() in ends])


def _check_registrations() -> None:
    """Errors: Uncacheable where the program has changed what is known of torch's operators: how
    they are taken apart, or what their results look like. Its functions have no text."""
    for name in FROM_TORCH:
        function = decomposition_table.get(overload(name))
        if str(getattr(function, "__module__", "")).partition(".")[0] not in TRUSTED:
            raise Uncacheable(f"the program has registered a decomposition of aten.{name}")
    for name, entry in list(singleton._data.items()):
        if name.partition("::")[0] not in OWN:
            continue
        kernel = entry.fake_impl.kernel
        if kernel is not None and not kernel.source.startswith(FOLDERS):
            raise Uncacheable(f"the program has registered a fake of {name}")


def changing_parts() -> dict[str, str]:
    """Those that may differ between a forward and its backward. Errors: Uncacheable."""
    return {
        "options": _text_of_options(),
        "modes": _text_of_modes(),
        "threads": f"{torch.get_num_threads()} of {len(os.sched_getaffinity(0))}",
    }


def _text_of_options() -> str:
    own = {name: value for name, value in dynamo_config.snapshot().items() if name not in ELSEWHERE}
    chosen = {name: value for name, value in config.snapshot().items() if name not in ELSEWHERE}
    return repr((sorted(chosen.items()), sorted(own.items())))


def _text_of_modes() -> str:
    """The state of torch that a compile depends on."""
    if torch._C._are_functorch_transforms_active():
        raise Uncacheable("a transform of torch.func is active")
    casts = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
             for device in ("cpu", "cuda")]  # fmt: skip
    return repr((
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts,
        torch.is_autocast_cache_enabled(), torch.get_default_dtype(), torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_float32_matmul_precision(), torch.is_anomaly_enabled(),
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        [_of_torch(name) for name in ("_get_mkldnn_enabled", "_get_mkldnn_deterministic")],
        [_of_torch("_get_fp32_precision_getter", "mkldnn", kind) for kind in ("matmul", "conv")],
    ))  # fmt: skip


def _of_torch(name: str, *args: str) -> Any:
    """A setting that not all versions of torch have."""
    function = getattr(torch._C, name, None)
    return None if function is None else function(*args)


def _text_of_inputs(examples: Sequence[Any]) -> str:
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return "\n".join([_text_of_input(value, objects, storages) for value in examples])


def _text_of_input(value: Any, objects: dict[int, int], storages: dict[int, int]) -> str:
    if not isinstance(value, torch.Tensor):
        return text_of_value(value, {})
    number = objects.setdefault(id(value), len(objects))
    text = _text_of_tensor(value, storages)
    grad = None if not value.is_leaf or value.grad is None else value.grad
    if grad is not None:
        text += f" grad ({_text_of_tensor(grad, storages)})"
    return f"{number}: {text}"


def _text_of_inputs_for_sizes(graph: str, examples: Sequence[Any]) -> str:
    """The same without what the capture has left open, which the graph's text tells."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    lines = [line for line in graph.split("\n") if line.startswith("placeholder ")]
    return "\n".join([
        _text_of_open_input(value, objects, storages) if OPEN in line else
        _text_of_input(value, objects, storages)
        for line, value in zip(lines, examples, strict=True)])


def _text_of_open_input(value: Any, objects: dict[int, int], storages: dict[int, int]) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    number = objects.setdefault(id(value), len(objects))
    text = _text_of_tensor(value, storages, is_open=True)
    if value.is_leaf and value.grad is not None:
        text += f" grad ({_text_of_tensor(value.grad, storages)})"
    return f"{number}: {text}"


def _text_of_tensor(
    value: torch.Tensor, storages: dict[int, int], is_open: bool = False
) -> str:
    """is_open: sizes and strides are told elsewhere; whether the tensor fills its memory is not."""
    kind = type(value)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise Uncacheable(f"an input is a {kind.__qualname__}")
    known = value.device.type in ("cpu", "cuda")
    if value.layout is not torch.strided or value.is_quantized or not known:
        raise Uncacheable(f"an input is on {value.device}, {value.layout}")
    storage = value.untyped_storage()
    place = storages.setdefault(storage._cdata, len(storages))
    view = ""
    if value._is_view():
        view = f"view {_get_creation_meta(value)}"
    flags = (value.requires_grad, value.is_leaf, value.is_inference(), value.is_conj(),
             value.is_neg(), value._is_zerotensor(), value.requires_grad and value.retains_grad,
             value.output_nr, bool(value._backward_hooks),
             bool(getattr(value, "_post_accumulate_grad_hooks", None)))  # fmt: skip
    layout = f"{tuple(value.shape)} {value.stride()}"
    taken: Any = storage.nbytes()
    if is_open:
        offset: Any = value.storage_offset()
        own = storage_bytes(value.shape, value.stride(), offset, value.itemsize)
        layout, taken = f"{value.dim()} dimensions", "its own" if taken == own else "more"
    return (
        f"{kind.__name__} {value.dtype} {layout} {value.device} "
        f"{value.storage_offset()} in {place} of {taken} {flags} {view}"
    )


def _text_of_graph(gm: fx.GraphModule, sizes: SizeWriter | None = None) -> str:
    """sizes: writes those that are symbols. Errors: Uncacheable; Unsupported."""
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in gm.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        marks = [name for name in MARKS if node.meta.get(name)]
        target = _text_of_target(gm, node)
        if node.op == "placeholder":
            lines.append(f"placeholder {node.name} {marks} {_open(node, sizes)}")
            continue
        lines.append(f"{node.op} {target} {text_of_value(node.args, numbers)} "
                     f"{text_of_value(node.kwargs, numbers)} {marks}")  # fmt: skip
    return "\n".join(lines)


OPEN = "<open>"


def _open(node: fx.Node, sizes: SizeWriter | None) -> str:
    """What a capture shows of an input beside the input itself."""
    shown = node.meta.get(SHOWN)
    if is_symbolic_number(shown):
        if sizes is None:
            raise Uncacheable("an input is a symbol")
        return f"{OPEN} {sizes.number(shown)}"
    if sizes is not None and type(shown) is int:
        return f"{OPEN} int"
    if isinstance(shown, torch.Tensor):
        if any(map(is_symbolic_number, (*shown.shape, *shown.stride()))):
            if sizes is None:
                raise Uncacheable("sizes are symbols")
            size, stride = (tuple(map(sizes.number, part))
                            for part in (shown.shape, shown.stride()))  # fmt: skip
            return f"{OPEN} {size} {stride} {shown.requires_grad}"
        return f"{tuple(shown.shape)} {tuple(shown.stride())} {shown.requires_grad}"
    return type(shown).__name__


def _text_of_target(gm: fx.GraphModule, node: fx.Node) -> str:
    if node.op in ("placeholder", "output", "call_method"):
        return str(node.target)
    if node.op in ("get_attr", "call_module"):
        value = functools.reduce(getattr, str(node.target).split("."), gm)
        if not isinstance(value, fx.GraphModule):
            raise Uncacheable(f"the graph holds a {type(value).__name__}")
        return f"[{_text_of_graph(value)}]"  # symbols of an inner graph have no text
    return text_of_function(node.target)


def text_of_function(function: Any, own: Collection[str] = OWN) -> str:
    """own: namespaces of operators that the versions in the key know. Errors: Uncacheable."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = str(function)
        if name.partition(".")[0].partition("::")[0] not in own:
            raise Uncacheable(f"{name} is an operator of the program")
        return name
    kind = type(function)
    if kind.__module__.partition(".")[0] == "inductor" and hasattr(kind, "text_in_keys"):
        return str(function.text_in_keys())
    if hasattr(function, AUTOGRAD_FUNCTION):
        cls = getattr(function, AUTOGRAD_FUNCTION)
        raise Uncacheable(f"{cls.__qualname__} is an autograd function of the program")
    try:
        name = _get_qualified_name(function)
    except Exception as error:
        raise Uncacheable(f"{function!r} has no name ({type(error).__name__})") from None
    if getattr(builtins, name, None) is function:  # as of `x.T`
        return f"builtins.{name}"
    package, _, rest = name.partition(".")
    if package not in TRUSTED or (function.__module__ or "torch").partition(".")[0] not in TRUSTED:
        raise Uncacheable(f"{name} is a function of the program")
    try:
        named = functools.reduce(getattr, rest.split("."), sys.modules[package])
    except AttributeError:
        named = None
    if named is not function:
        raise Uncacheable(f"{name} names another function")
    return name


def text_of_value(value: Any, numbers: Mapping[fx.Node, str]) -> str:
    """Equal for equal arguments only."""
    kind = type(value)
    if isinstance(value, fx.Node):
        return numbers[value]
    if kind is float:
        return "nan" if math.isnan(value) else value.hex()
    if kind in PLAIN:
        return repr(value)
    if isinstance(value, NAMED):
        return f"<{value}>"
    if isinstance(value, tuple | list):
        inner = ", ".join([text_of_value(item, numbers) for item in value])
        name = "list" if isinstance(value, list) else kind.__name__
        if name not in ("list", "tuple", "Size"):
            raise Uncacheable(f"an argument is a {kind.__qualname__}")
        return f"{name}({inner})"
    if isinstance(value, dict):
        rows = [f"{text_of_value(key, numbers)}: {text_of_value(item, numbers)}"
                for key, item in value.items()]  # fmt: skip
        return f"{{{', '.join(rows)}}}"
    if kind is slice:
        return f"slice{text_of_value((value.start, value.stop, value.step), numbers)}"
    raise Uncacheable(f"an argument is a {kind.__qualname__}")
