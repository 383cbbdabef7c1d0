"""Which library computes a matrix product: measured once for each machine and shape class.

In: a loop graph whose products are ATen's. Out: the same graph where some are computed by something
else with the same result. ATen's products of float32 go through MKL, which is slow on some
processors; oneDNN, in the same torch, is not. It wants the weight as [n, k]: one stored as [k, n]
is turned by a kernel first. Our own product (`codegen/cpp/product.py`) takes both and writes where
the result shall lie. What was measured is kept in the cache folder.

Frozen weights (`freezing.py`) are turned, or put in the order in which our product or oneDNN's
products and convolutions read them, once: the graph gets what was prepared as further inputs. That
takes as much memory again: where our product reads weights as they are ("plain") and is not clearly
slower, nothing is prepared.
oneDNN could apply a ReLU, too, but makes zeros of NaNs: that stays a kernel of ours.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynamo.base import logs
from inductor.codegen.cpp.half_product import HALF_NAME
from inductor.codegen.cpp.own_calls import is_own_stack, is_own_sum
from inductor.codegen.cpp.product import ALIAS, PRODUCT_NAME
from inductor.config import OWN, config
from inductor.ir.body import trace_body
from inductor.ir.extent import hint_of
from inductor.ir.graph import (
    Argument,
    ComputedBuffer,
    ExternKernel,
    Layout,
    LoopGraph,
    Node,
    ViewRef,
)
from inductor.library_convolutions import HALF_SUPPORT, Convolutions, has_onednn, is_native
from inductor.preparation import Preparer, contiguous
from inductor.runtime.build import BuildError
from inductor.runtime.products import Product, load_product
from inductor.runtime.store import Store, make_key
from inductor.runtime.toolchain import describe_isa, find_toolchain
from inductor.runtime.trials import compare, give_back_memory, is_time_left, measuring, noise

aten = torch.ops.aten
# Larger products are measured with fewer rows or columns.
MOST_FLOPS = 1 << 29
# Bytes of a weight that is measured.
MOST_TRIED = 1 << 23
# What stays unclear is measured for so long: products of so many operations, and small ones, which
# repay less.
LARGE = 1 << 28
MOST_SECONDS, FEWEST_SECONDS = 0.15, 0.03
# Weights are read from memory in a model: those that are measured take turns.
COLD_BYTES, MOST_WEIGHTS = 1 << 25, 8
# Another product must be clearly faster than the usual one; what is narrow is measured again in so
# many later processes.
ADVANTAGE, NARROW, MOST_MEASUREMENTS = 0.95, 1.1, 3
# oneDNN's sums have twice the errors of the others', so it has to be faster than these by so much
# beside that.
LESS_EXACT, HANDICAP = ("onednn", "packed"), 1.1
# A prepared copy of a weight takes memory for good, so it has to be that much faster, too, where
# the weight can be read as it is: one that lies as [k, n] is copied piece by piece at each call,
# which so many rows repay.
COPIES, PRICE, ROWS_OF_COLUMNS = ("packed", "ours"), 1.08, 64
# What the thread that measures with all threads spends of the time that passes; with less, others
# use the machine, and only what one thread alone needs tells anything.
STEADY = 0.95
# Below, our own product is not worth building its library.
FEWEST_OPERATIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Linear:
    """x [m, k] times the transpose of weight [n, k], plus bias [n] or nothing.

    m, n, k: what they are at the compile, where they are known at a call only; columns: the weight
    lies in memory as [k, n]; turned: x lies there as [k, m].
    """

    m: int
    n: int
    k: int
    x: ViewRef
    weight: ViewRef
    bias: ViewRef | None
    columns: bool
    frozen: bool
    turned: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of both sides and the result."""
        return self.x.dtype

    def shape_class(self) -> tuple[int, int, int, bool, bool, bool, bool, bool, str]:
        """Sizes, each rounded up to a power of two: products of one class behave alike. The first
        of a class is measured with its own sizes."""
        m, n, k = (1 << (size - 1).bit_length() for size in (self.m, self.n, self.k))
        layout = self.columns, self.frozen, self.turned, self.k % ALIAS == 0
        return m, n, k, self.bias is not None, *layout, str(self.dtype)


def choose_library_kernels(
    graph: LoopGraph, store: Store, threads: int, frozen: Collection[int] = (), ours: bool = True,
    taken: int = 0,
) -> LoopGraph:
    """The graph with each product computed by what was fastest for its class.

    frozen: positions of inputs that hardly ever change. ours: products of our own are candidates.
    taken: bytes of what has been prepared already.
    """
    if graph.device.type != "cpu":
        return graph
    return _Rewriter(graph, _Chooser(store, threads, ours), Preparer(graph, frozen, taken)).run()


class _Rewriter:
    def __init__(self, graph: LoopGraph, chooser: _Chooser, preparer: Preparer) -> None:
        self.graph = graph
        self.chooser = chooser
        self.layouts = graph.layouts()
        self.preparer = preparer
        self.convolutions = Convolutions(
            graph, self.preparer, chooser.store, chooser.threads, chooser.with_ours)

    def run(self) -> LoopGraph:
        self.choose_dearest_first()
        nodes: list[Node] = []
        for node in self.graph.nodes:
            linear = None
            if isinstance(node, ExternKernel):
                node = self.convolutions.rewritten(node)
                linear = self.as_linear(node)
            if linear is None:
                nodes.append(self.as_own(node))
            else:
                assert isinstance(node, ExternKernel)
                way = self.chooser.fastest(linear)
                if config.library_kernels == OWN and way != "aten":
                    node = _with_views(node, linear)
                nodes += REWRITES[way](self, node, linear)
        if self.chooser.measured or self.convolutions.measured:
            give_back_memory()  # of trials: what is kept of weights comes beside it
        self.chooser.save()
        self.convolutions.save()
        return replace(
            self.graph, nodes=tuple(nodes), inputs=self.preparer.inputs_for(nodes),
            prepared=self.preparer.prepared(),
        )  # fmt: skip

    def as_own(self, node: Node) -> Node:
        """A call that the wrapper computes by itself, where no library is wanted."""
        if config.library_kernels != OWN or not isinstance(node, ExternKernel):
            return node
        fits = is_own_stack(node) and self.chooser.ours(torch.float32) is not None
        return replace(node, ours=True) if fits or is_own_sum(node) else node

    def as_linear(self, node: ExternKernel) -> Linear | None:
        find = _as_own_linear if config.library_kernels == OWN else _as_linear
        linear = find(node, self.layouts, self.preparer.frozen)
        if linear is not None and linear.frozen and not self.preparer.has_room(linear.weight):
            return replace(linear, frozen=False)
        return linear

    def choose_dearest_first(self) -> None:
        """The time for measuring may not be enough for all: it goes to the classes on which the
        graph spends most."""
        if config.library_kernels != "measure":
            return
        operations: dict[Any, int] = {}
        choices: dict[Any, Callable[[], str]] = {}
        for node in self.graph.nodes:
            if not isinstance(node, ExternKernel):
                continue
            linear, geometry = self.as_linear(node), self.convolutions.geometry(node)
            if linear is not None:
                kind: Any = linear.shape_class()
                count = linear.m * linear.n * linear.k
                choices.setdefault(kind, functools.partial(self.chooser.fastest, linear))
            elif geometry is not None:
                kind, count = self.convolutions.kind(node, geometry), geometry.operations()
                choose = functools.partial(self.convolutions.fastest, node, geometry)
                choices.setdefault(kind, choose)
            else:
                continue
            operations[kind] = operations.get(kind, 0) + count
        for kind in sorted(choices, key=operations.__getitem__, reverse=True):
            choices[kind]()

    def by_aten(self, node: ExternKernel, linear: Linear) -> list[Node]:
        return [node]

    def by_onednn(self, node: ExternKernel, linear: Linear) -> list[Node]:
        nodes: list[Node] = []
        weight = linear.weight
        if linear.columns:
            name = f"{node.name}_weight"
            stride = (weight.size[1], 1)
            if linear.frozen:
                layout = Layout(self.graph.device, weight.dtype, weight.size, stride)
                name = self.preparer.prepare("turned", weight, layout, torch.Tensor.contiguous)
            else:
                nodes.append(_turned(weight, name, self.graph.device))
            weight = replace(weight, buffer=name, stride=stride, offset=0)
        args = (linear.x, weight, linear.bias, "none", (), "")
        target = torch.ops.mkldnn._linear_pointwise.default
        return [*nodes, replace(node, target=target, args=args)]

    def by_packed(self, node: ExternKernel, linear: Linear) -> list[Node]:
        weight = linear.weight
        make = functools.partial(_packed_linear, linear.m)
        layout = self.preparer.as_it_is(weight)
        name = self.preparer.prepare("packed", weight, layout, make, (linear.m,))
        weight = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
        args = (linear.x, weight, linear.bias, "none", (), "")
        return [replace(node, target=torch.ops.mkldnn._linear_pointwise.default, args=args)]

    def by_ours(self, node: ExternKernel, linear: Linear) -> list[Node]:
        if not linear.frozen:
            return [replace(node, ours=True)]
        product = self.chooser.ours(linear.dtype)
        assert product is not None
        weight = linear.weight
        n, k = weight.size
        whole = replace(weight, size=(k, n), stride=weight.stride[::-1])
        size = (product.panels_size(k, n),)
        layout = Layout(self.graph.device, weight.dtype, size, (1,))
        panels = self.preparer.prepare("panels", whole, layout, product.panels)
        return [replace(node, ours=True, panels=panels)]

    def by_plain(self, node: ExternKernel, linear: Linear) -> list[Node]:
        return [replace(node, ours=True)]


def _packed_linear(rows: int, weight: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return made


REWRITES: dict[str, Callable[[_Rewriter, ExternKernel, Linear], list[Node]]] = {
    "aten": _Rewriter.by_aten,
    "onednn": _Rewriter.by_onednn,
    "ours": _Rewriter.by_ours,
    "packed": _Rewriter.by_packed,
    "plain": _Rewriter.by_plain,
}


def _turned(weight: ViewRef, name: str, device: torch.device) -> ComputedBuffer:
    """A contiguous copy of a matrix."""
    rows, columns = weight.stride

    def copy(ops: Any, i: Any, r: Any) -> None:
        value = ops.load(weight.buffer, i[0] * rows + i[1] * columns + weight.offset, weight.dtype)
        ops.store(name, i[0] * weight.size[1] + i[1], value)

    layout = Layout(device, weight.dtype, weight.size, (weight.size[1], 1))
    return ComputedBuffer(name, layout, trace_body(weight.size, (), copy), "pointwise")


def _factors(node: ExternKernel) -> tuple[Argument, ViewRef, ViewRef] | None:
    """Bias or None, left and right operand of `mm` or `addmm`; None for another operator."""
    if node.target not in (aten.mm.default, aten.addmm.default):
        return None
    bias, x, weight = (None, *node.args)[-3:]
    return (bias, x, weight) if isinstance(x, ViewRef) and isinstance(weight, ViewRef) else None


def _as_linear(
    node: ExternKernel, layouts: dict[str, Layout], frozen: Collection[str]
) -> Linear | None:
    """The product as a linear layer, if it is one with a dense weight, of float32 or of half
    precision that oneDNN knows on this processor."""
    if node.layout is None or node.kwargs:
        return None
    half = node.layout.dtype in HALF_SUPPORT
    if not (is_native(node.layout.dtype) if half else node.layout.dtype is torch.float32):
        return None
    factors = _factors(node)
    if factors is None:
        return None
    bias, x, weight = factors
    (m, k), n = x.size, weight.size[1]
    if x.stride not in ((k, 1), (1, m)) or weight.stride not in ((1, k), (n, 1)):
        return None
    if half and x.stride != (k, 1):
        return None
    if node.layout.stride != (n, 1):
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or bias.stride != (1,)):
        return None
    columns = weight.stride == (n, 1)
    turned = replace(weight, size=(n, k), stride=weight.stride[::-1])
    m, n, k = map(hint_of, (m, n, k))
    if min(n, k) < 2:
        return None
    bias = bias if isinstance(bias, ViewRef) else None
    is_frozen = weight.buffer in frozen
    return Linear(m, n, k, x, turned, bias, columns, is_frozen, x.stride[1] != 1)


def _as_own_linear(
    node: ExternKernel, layouts: dict[str, Layout], frozen: Collection[str]
) -> Linear | None:
    """As above, where our own product is the only one: it takes rows at any distance, any weight,
    and sizes of 1."""
    if node.layout is None or node.kwargs or node.layout.dtype is not torch.float32:
        return _as_linear(node, layouts, frozen)
    factors = _factors(node)
    if factors is None:
        return None
    bias, x, weight = factors
    (m, k), n = x.size, weight.size[1]
    x, weight = _without_ones(x), _without_ones(weight)
    sizes = (m, n, k)
    known = all(type(size) is int and size > 0 for size in sizes)
    if not known or 1 not in x.stride or weight.stride[0] == 0:
        return _as_linear(node, layouts, frozen)
    down, across = node.layout.stride
    if m > 1 and down != n or n > 1 and across != 1:
        return None
    if isinstance(bias, ViewRef) and (bias.size != (n,) or n > 1 and bias.stride != (1,)):
        return None
    turned = replace(weight, size=(n, k), stride=weight.stride[::-1])
    bias = bias if isinstance(bias, ViewRef) else None
    columns = turned.stride != (k, 1)
    return Linear(m, n, k, x, turned, bias, columns, weight.buffer in frozen, x.stride[1] != 1)


def _without_ones(view: ViewRef) -> ViewRef:
    """A matrix whose strides of sizes of 1, which say nothing, are those of a dense one."""
    (rows, columns), (down, across) = view.size, view.stride
    if columns == 1:
        across = 1 if down != 1 or rows == 1 else rows
    if rows == 1:
        down = columns
    return replace(view, stride=(down, across))


def _with_views(node: ExternKernel, linear: Linear) -> ExternKernel:
    """The call with the operands as `linear` sees them."""
    weight = linear.weight
    right = replace(weight, size=weight.size[::-1], stride=weight.stride[::-1])
    return replace(node, args=(*node.args[:-2], linear.x, right))


@dataclass(frozen=True, slots=True)
class Answer:
    """What was measured for a class: how long each candidate takes against ATen's product (the mean
    of logarithms over `measurements`), and the last process that measured."""

    ratios: dict[str, float]
    measurements: int
    process: int

    def choice(self) -> str:
        """The usual one unless another one is clearly faster. Of frozen weights, that is our own,
        without a copy if it can, for it takes in what follows; else oneDNN's."""
        usual = usual_of(self.ratios)
        needed = margins(self.ratios)
        over = {name: self.ratios[name] - self.ratios[usual] - needed[name] for name in needed}
        best = min(over, key=over.__getitem__, default=usual)
        return best if over and over[best] < 0 else usual

    def is_narrow(self) -> bool:
        """Whether another measurement might change the choice."""
        chosen = self.ratios[self.choice()]
        return any(
            name != self.choice() and abs(ratio - chosen) < math.log(NARROW)
            for name, ratio in self.ratios.items()
        )

    def joined(self, other: Answer) -> Answer:
        """Both together; of the same candidates."""
        if self.ratios.keys() != other.ratios.keys():
            return other
        count = self.measurements + other.measurements
        ratios = {
            name: (ratio * self.measurements + other.ratios[name] * other.measurements) / count
            for name, ratio in self.ratios.items()
        }
        return Answer(ratios, count, other.process)


def margins(names: Collection[str]) -> dict[str, float]:
    """The logarithm that the time of each other candidate over that of the usual one has to be
    below."""
    usual = usual_of(names)
    needed = {name: math.log(ADVANTAGE) for name in names if name != usual}
    for name in needed:
        if name in LESS_EXACT:
            needed[name] -= math.log(HANDICAP)
        if name in COPIES and usual == "plain":
            needed[name] -= math.log(PRICE)
    return needed


def usual_of(names: Collection[str]) -> str:
    """The candidate that is taken unless another one is clearly faster."""
    if "plain" in names:
        return "plain"
    if "packed" not in names:
        return "aten"
    return "ours" if "ours" in names else "packed"


class _Chooser:
    """Answers by shape class; measures those that the cache does not know, or not well."""

    def __init__(self, store: Store, threads: int, with_ours: bool = True) -> None:
        self.store = store
        self.threads = threads
        self.with_ours = with_ours
        self.key = make_key(
            "products",
            {
                "isa": describe_isa(),
                "torch": torch.__version__,
                "threads": str(threads),
                "ours": f"{PRODUCT_NAME} {HALF_NAME}" if with_ours else "",
                "answers": "ratios of all threads",
            },
        )
        read = store.values(self.key) or {}
        self.answers = {name: Answer(*values) for name, values in read.items()}
        self.measured = False

    def fastest(self, linear: Linear) -> str:
        """A key of `REWRITES`; after "ours" the library is loaded."""
        if config.library_kernels == OWN:
            return self._fastest_own(linear)
        name = repr(linear.shape_class())
        known = self.answers.get(name)
        if config.library_kernels != "measure":
            if known is None:
                return "aten"
        elif known is None or self._is_worth_another(known) and is_time_left():
            worth = linear.m * linear.n * linear.k >= FEWEST_OPERATIONS
            ours = self.ours(linear.dtype) if worth else None
            if linear.turned and ours is None:
                return "aten"
            if not is_time_left():
                return self._likely(linear, ours)
            found = Answer(_measure(linear, ours, self.threads), 1, os.getpid())
            known = self.answers[name] = known.joined(found) if known is not None else found
            self.measured = True
        answer = known.choice()
        is_ours = answer in ("ours", "plain")
        return "aten" if is_ours and self.ours(linear.dtype) is None else answer

    def _fastest_own(self, linear: Linear) -> str:
        """The same without any library's: weights that lie as they are, or a prepared copy, which
        takes the place of the weight."""
        ours = self.ours(linear.dtype)
        if ours is None:
            return "aten"
        names = [name for name in _names(linear, ours) if name in ("ours", "plain")]
        small = linear.m * linear.n * linear.k < FEWEST_OPERATIONS
        if len(names) == 1 or small:
            return names[0]
        name = repr(linear.shape_class())
        known = self.answers.get(name)
        if known is None or not known.ratios.keys() >= set(names):
            if not is_time_left():
                return names[0]
            known = self.answers[name] = Answer(
                _measure(linear, ours, self.threads), 1, os.getpid())
            self.measured = True
        return min(names, key=known.ratios.__getitem__)

    def _likely(self, linear: Linear, ours: Product | None) -> str:
        """What to use without a measurement: the same as for the nearest class that has one."""
        names = _names(linear, ours)
        wanted, near = linear.shape_class(), list[tuple[float, str]]()
        for text, known in self.answers.items():
            its, choice = ast.literal_eval(text), known.choice()
            if its[3:] == wanted[3:] and choice in names:
                away = sum(abs(math.log2(a / b)) for a, b in zip(wanted[:3], its[:3], strict=True))
                near.append((away, choice))
        return min(near)[1] if near else usual_of(names)

    def _is_worth_another(self, known: Answer) -> bool:
        other_process = known.process != os.getpid()
        return other_process and known.measurements < MOST_MEASUREMENTS and known.is_narrow()

    def ours(self, dtype: torch.dtype) -> Product | None:
        if not self.with_ours or dtype is torch.float16:
            return None
        toolchain = find_toolchain(self.store)
        if isinstance(toolchain, str):
            return None
        try:
            return load_product(self.store, toolchain, dtype)
        except BuildError as error:
            why = str(error)
            logs.log("inductor").emit(lambda: f"there is no product of our own: {why}")
            return None

    def save(self) -> None:
        if self.measured:
            rows = {
                name: (known.ratios, known.measurements, known.process)
                for name, known in self.answers.items()
            }
            self.store.keep_values(self.key, rows)


# Makes calls of each candidate for some threads, one for each weight.
Candidates = dict[str, Callable[[int], list[Callable[[], Any]]]]


def _measured_sizes(linear: Linear) -> tuple[int, int, int]:
    """The product's own, unless that takes too long: then fewer rows or columns. Of a weight that
    is large for them, a part: there are several copies of each candidate's."""
    m, n, k = linear.m, linear.n, linear.k
    while 2 * m * n * k > MOST_FLOPS and max(m, n) > 1:
        m, n = (m // 2, n) if m > n else (m, n // 2)
    while n * k * linear.dtype.itemsize > MOST_TRIED:
        n, k = (n // 2, k) if n > k else (n, k // 2)
    return m, n, k


def _measure(linear: Linear, ours: Product | None, threads: int) -> dict[str, float]:
    """The logarithm of each candidate's time over ATen's: of all threads together, for libraries do
    not share work equally well; of one thread, where others use the machine, too."""
    m, n, k = _measured_sizes(linear)
    seconds = max(FEWEST_SECONDS, MOST_SECONDS * min(1.0, 2 * m * n * k / LARGE))
    with torch.inference_mode(False), torch.no_grad(), measuring():
        x = noise(k, m).t() if linear.turned else noise(m, k)
        x, weight, bias = (each.to(linear.dtype) for each in (x, noise(n, k), noise(n)))
        names = _names(linear, ours)
        usual = usual_of(names)
        held = weight.numel() * weight.element_size() * len(names)
        weights = [weight.clone() for _ in range(max(2, min(MOST_WEIGHTS, COLD_BYTES // held)))]
        candidates = _candidates(
            linear, ours, x, weights, bias if linear.bias is not None else None)
        found = _with_all_threads(candidates, usual, threads, seconds)
        if found is None:
            found = _with_one_thread(candidates, usual, seconds)
    return {name: ratio - found["aten"] for name, ratio in found.items()}


def _with_all_threads(
    candidates: Candidates, usual: str, threads: int, seconds: float
) -> dict[str, float] | None:
    """None for one thread, and where others use the machine meanwhile: seen after a few rounds."""
    if threads == 1:
        return None
    ways = {name: make(threads) for name, make in candidates.items()}
    own, begin = time.thread_time(), time.perf_counter()

    def is_steady() -> bool:
        return time.thread_time() - own >= STEADY * (time.perf_counter() - begin)

    found = compare(ways, usual, margins(ways), time.perf_counter, seconds, is_steady)
    return found if is_steady() else None


def _with_one_thread(candidates: Candidates, usual: str, seconds: float) -> dict[str, float]:
    with _one_thread():
        ways = {name: make(1) for name, make in candidates.items()}
        return compare(ways, usual, margins(ways), time.thread_time, seconds)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _names(linear: Linear, ours: Product | None) -> list[str]:
    """The candidates for a product."""
    names = ["aten"]
    if linear.turned:
        pass  # oneDNN's products want rows
    elif linear.frozen and has_onednn("_linear_pointwise", "_reorder_linear_weight"):
        names.append("packed")
    elif linear.dtype is torch.float32 and has_onednn("_linear_pointwise"):
        names.append("onednn")  # of half precision, ATen's are that
    if ours is not None:
        names.append("ours")
        if linear.frozen and not linear.turned and _can_be_plain(linear, ours):
            names.append("plain")
    return names


def _can_be_plain(linear: Linear, ours: Product) -> bool:
    if linear.columns:
        return linear.m > ROWS_OF_COLUMNS
    return bool(ours.is_plain(linear.m, linear.k))


def _candidates(
    linear: Linear, ours: Product | None, x: torch.Tensor, weights: list[torch.Tensor],
    bias: torch.Tensor | None,
) -> Candidates:
    """Of these weights [n, k]."""
    (m, _), n = x.shape, weights[0].shape[0]
    out = x.new_empty(m, n)
    given = [w.t().contiguous() if linear.columns else w.t() for w in weights]

    def by_aten(turned: torch.Tensor, threads: int) -> None:
        if bias is None:
            torch.mm(x, turned, out=out)
        else:
            torch.addmm(bias, x, turned, out=out)

    def by_onednn(weight: torch.Tensor, turned: torch.Tensor, threads: int) -> None:
        if linear.columns and not linear.frozen:
            weight.copy_(turned)  # our kernel is faster than this
        torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    def calls(function: Callable[..., Any], right: list[Any]) -> Callable[[int], list[Any]]:
        return lambda threads: [functools.partial(function, *each, threads) for each in right]

    found = {"aten": calls(by_aten, [(turned,) for turned in given])}
    names = _names(linear, ours)
    if "packed" in names:
        packed = [_packed_linear(m, w) for w in weights]
        found["packed"] = calls(by_onednn, [(w, w) for w in packed])
    if "onednn" in names:
        pairs = zip(weights, given, strict=True)
        found["onednn"] = calls(by_onednn, [(w, turned.t()) for w, turned in pairs])
    if ours is not None:
        right = [ours.panels(turned) if linear.frozen else turned for turned in given]
        found["ours"] = calls(ours.multiply, [(x, each, bias, out) for each in right])
    if "plain" in names:
        assert ours is not None
        found["plain"] = calls(ours.multiply, [(x, each, bias, out) for each in given])
    return found
