"""What one call of attention asks of its kernels: sizes, strides, mask, bias, as plain numbers.

In: metadata of tensors (real or fake). Out: an `AttentionSpec`, from which come the constants of
the Triton functions, the grids, and the choice of blocks. Everything is a pure function of
metadata, so forward and backward decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.graph_operators.flex_calls import result_strides
from inductor.ir.gpus import MEASURED, GpuProperties, shrunk
from inductor.runtime.gpu_properties import properties_of

Four = tuple[int, int, int, int]
Form = tuple[Four, Four]  # sizes and strides
Leaves = Sequence[bool]  # of queries, keys, values
NO_LEAVES = (False, False, False)
Grid = tuple[int, int, int]
HALF = (torch.float16, torch.bfloat16)
MOST_HEAD = 256  # a larger one has no tile in registers
LEAST_PAD = 16  # of a matrix unit
FEW_QUERIES = 16  # of which programs share the keys
MOST_ROWS = 128  # of a tile that holds the queries of several heads
MOST_SPLITS, LEAST_CHUNK = 64, 128  # programs for the keys of one head, keys for each of them
ENOUGH_PROGRAMS = 2  # for each multiprocessor
SPARE_SHARED = 3 << 10  # bytes, for sums that go from warp to warp


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a kernel is cut: queries and keys of a block, warps, stages of loads in flight."""

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One attention: (batch, heads, queries, keys, sizes of a head) and strides of each tensor.

    bias, mask: strides of what is added to the scores and of what says which keys are seen; 0 where
    broadcast, None without. window: a query sees keys of less than this distance behind it; 0: all.
    nan_rows: a row whose scores are all -inf gives NaN, else zeros. lse: log-sum-exps are wanted.
    gpu: that which runs the kernels.
    """

    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value_head: int
    q: Four
    k: Four
    v: Four
    out: Four
    scale: float
    bias: Four | None = None
    mask: Four | None = None
    causal: bool = False
    window: int = 0
    cap: float = 0.0
    nan_rows: bool = False
    lse: bool = False
    gpu: GpuProperties = MEASURED

    @property
    def is_plain(self) -> bool:
        """Whether scores are products times a scale, some of them left out."""
        return self.bias is None and not self.cap

    @property
    def may_be_empty(self) -> bool:
        """Whether a query may see no key."""
        return not self.is_plain or self.mask is not None or self.window > 0

    def gradients(self, leaves: Leaves = NO_LEAVES) -> tuple[Form, Form, Form]:
        """Sizes and strides of the gradients; see `gradient_strides`."""
        forms = (
            ((self.batch, self.heads, self.queries, self.head), self.q),
            ((self.batch, self.kv_heads, self.keys, self.head), self.k),
            ((self.batch, self.kv_heads, self.keys, self.value_head), self.v),
        )
        dq, dk, dv = ((size, gradient_strides(size, stride, leaf))
                      for (size, stride), leaf in zip(forms, leaves, strict=True))
        return dq, dk, dv

    def constants(
        self, grad: Four = (0, 0, 0, 0), leaves: Leaves = NO_LEAVES
    ) -> dict[str, Any]:
        """The constants of all kernels, without those of blocks. grad: strides of the gradient."""
        (_, dq), (_, dk), (_, dv) = self.gradients(leaves)
        bias, mask = self.bias or (0, 0, 0, 0), self.mask or (0, 0, 0, 0)
        strides = {
            "Q": ("BHMD", self.q), "K": ("BHND", self.k), "V": ("BHND", self.v),
            "O": ("BHMD", self.out), "G": ("BHMD", grad), "B": ("BHMN", bias),
            "M": ("BHMN", mask), "DQ": ("BHMD", dq), "DK": ("BHND", dk), "DV": ("BHND", dv),
        }  # fmt: skip
        found: dict[str, Any] = {
            f"{name}{axis}": step
            for name, (axes, steps) in strides.items()
            for axis, step in zip(axes, steps, strict=True)
        }
        return found | {
            "HEADS": self.heads, "GROUP": self.heads // self.kv_heads, "N_Q": self.queries,
            "N_K": self.keys, "D": self.head, "E": self.value_head, "PAD_D": padded(self.head),
            "PAD_E": padded(self.value_head), "HAS_BIAS": self.bias is not None,
            "HAS_MASK": self.mask is not None, "CAUSAL": self.causal, "WINDOW": self.window,
            "SCALE": self.scale, "CAP": self.cap, "PLAIN": self.is_plain,
            "MAY_BE_EMPTY": self.may_be_empty, "NAN_ROWS": self.nan_rows, "HAS_LSE": self.lse,
        }  # fmt: skip

    def grid(self, blocks: Blocks) -> Grid:
        """Programs of a kernel over blocks of queries."""
        return (-(-self.queries // blocks.rows) * self.batch * self.heads, 1, 1)

    def grid_of_keys(self, blocks: Blocks) -> Grid:
        """Programs of a kernel over blocks of keys."""
        return (-(-self.keys // blocks.columns) * self.batch * self.kv_heads, 1, 1)


@dataclass(frozen=True, slots=True)
class Few:
    """How the keys of few queries are shared out: so many programs of `chunk` keys for each head
    of keys, with tiles of so many rows, which are all queries of the heads that share it."""

    splits: int
    chunk: int
    blocks: Blocks


def splits_of(
    gpu: GpuProperties, batch: int, heads: int, queries: int, kv_heads: int, keys: int
) -> int:
    """How many programs share the keys of a head; 1 where one goes over all of them."""
    if queries > FEW_QUERIES or queries * (heads // kv_heads) > MOST_ROWS:
        return 1
    wanted = -(-ENOUGH_PROGRAMS * gpu.multiprocessors // (batch * kv_heads))
    return max(1, min(wanted, keys // LEAST_CHUNK, MOST_SPLITS))


def few_of(spec: AttentionSpec) -> Few | None:
    """None where one program goes over all keys. Log-sum-exps, as training wants them, are not
    given."""
    splits = splits_of(
        spec.gpu, spec.batch, spec.heads, spec.queries, spec.kv_heads, spec.keys)
    if splits == 1 or spec.lse:
        return None
    widest = max(padded(spec.head), padded(spec.value_head))
    rows = padded(spec.queries * (spec.heads // spec.kv_heads))
    wanted = (Blocks(rows, 64 if widest <= 128 else 32, 4, 3),)
    (blocks,) = _fitting(spec, wanted, rows_stay=True)
    chunk = -(-spec.keys // (splits * blocks.columns)) * blocks.columns
    return Few(-(-spec.keys // chunk), chunk, blocks)


def padded(size: int) -> int:
    """The size of a tile that holds a head."""
    return max(LEAST_PAD, 1 << (size - 1).bit_length())


def spec_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    mask: torch.Tensor | None, *, causal: bool, scale: float, window: int = 0,
    cap: float = 0.0, nan_rows: bool = False, lse: bool = False,
) -> AttentionSpec:
    """The spec of tensors (batch, heads, length, head); bias and mask broadcast to the scores."""
    batch, heads, queries, head = q.shape
    scores = (batch, heads, queries, k.shape[2])
    return AttentionSpec(
        q.dtype, batch, heads, k.shape[1], queries, k.shape[2], head, v.shape[3],
        four_strides(q), four_strides(k), four_strides(v), result_stride(q, v), scale,
        broadcast_strides(bias, scores), broadcast_strides(mask, scores), causal, window, cap,
        nan_rows, lse, properties_of(q.device),
    )  # fmt: skip


def result_stride(q: torch.Tensor, v: torch.Tensor) -> Four:
    """Queries outside of heads, as torch's fused kernels have it."""
    return dense_heads(q.shape[0], q.shape[1], q.shape[2], v.shape[3])


def gradient_strides(size: Sequence[int], stride: Sequence[int], leaf: bool) -> Four:
    """Strides of a gradient. leaf: of a tensor that autograd keeps the gradient of as it is, in the
    order of its own memory, and would copy it otherwise; what is computed further has lengths
    outside of heads, as GEMMs in front of attention want it."""
    b, h, n, d = result_strides(tuple(size), tuple(stride)) if leaf else dense_heads(*size)
    return b, h, n, d


def dense_heads(batch: int, heads: int, length: int, head: int) -> Four:
    """Strides of a tensor of these sizes where length lies outside of heads."""
    return length * heads * head, head, heads * head, 1


def four_strides(tensor: torch.Tensor) -> Four:
    """Strides of a tensor of four axes."""
    b, h, n, d = tensor.stride()
    return b, h, n, d


def broadcast_strides(tensor: torch.Tensor | None, size: Four) -> Four | None:
    """Strides of a tensor when it is expanded to a size."""
    if tensor is None:
        return None
    return broadcast_steps(tensor.shape, tensor.stride())


def broadcast_steps(size: Sequence[int], stride: Sequence[int]) -> Four:
    """Strides of what has these sizes and strides, at most four axes, when it is expanded."""
    steps = [0 if n == 1 else step for n, step in zip(size, stride, strict=True)]
    b, h, m, n = [0] * (4 - len(steps)) + steps
    return b, h, m, n


def forward_choices(spec: AttentionSpec) -> tuple[Blocks, ...]:
    """Blocks to try, the likely best first. What the device can't hold has smaller blocks."""
    return _fitting(spec, _forward_measured(spec), rows_stay=True)


def keys_choices(spec: AttentionSpec) -> tuple[Blocks, ...]:
    """The same for the gradients of keys and values."""
    return _fitting(spec, _keys_measured(spec), rows_stay=False)


def queries_choices(spec: AttentionSpec) -> tuple[Blocks, ...]:
    """The same for the gradients of queries and scores."""
    return _fitting(spec, _queries_measured(spec), rows_stay=True)


def _fitting(
    spec: AttentionSpec, measured: Sequence[Blocks], rows_stay: bool
) -> tuple[Blocks, ...]:
    """rows_stay: a program has its rows from beginning to end, and its loop goes over columns."""
    room = spec.gpu.shared - SPARE_SHARED
    return tuple(
        shrunk(blocks, lambda each: shared_of(spec, each, rows_stay) <= room, 1, LEAST_PAD)
        for blocks in measured)


def shared_of(spec: AttentionSpec, blocks: Blocks, rows_stay: bool) -> int:
    """Bytes of shared memory for tiles of heads, and of weights where they are turned."""
    stay, move = blocks.rows, blocks.columns
    if not rows_stay:
        stay, move = move, stay
    width = padded(spec.head) + padded(spec.value_head)
    return spec.dtype.itemsize * (
        (stay + blocks.stages * move) * width + blocks.rows * blocks.columns)


def _forward_measured(spec: AttentionSpec) -> tuple[Blocks, ...]:
    """Blocks of the forward kernel that were fastest on an H200."""
    widest = max(padded(spec.head), padded(spec.value_head))
    if spec.queries <= 16:
        return (Blocks(16, 64, 4, 3), Blocks(16, 128, 4, 2))
    if widest <= 64:
        masked = spec.mask is not None and spec.mask[2] != 0
        stages = 2 if masked or spec.causal else 3
        usual, narrow = Blocks(64, 64, 4, stages), Blocks(128, 32, 4, 4)
        if spec.keys % 64 and spec.keys % 64 <= 32:
            usual, narrow = narrow, usual
        return (
            usual, narrow, Blocks(64, 128, 4, 2), Blocks(128, 64, 8, 3), Blocks(128, 64, 4, 3),
        )  # fmt: skip
    if widest <= 128:
        return (
            Blocks(64, 64, 4, 3), Blocks(128, 64, 4, 2), Blocks(128, 64, 8, 3),
            Blocks(128, 32, 4, 3),
        )  # fmt: skip
    return (Blocks(64, 32, 4, 2), Blocks(64, 64, 8, 2), Blocks(128, 32, 8, 2))


def _keys_measured(spec: AttentionSpec) -> tuple[Blocks, ...]:
    widest = max(padded(spec.head), padded(spec.value_head))
    if widest <= 64:
        best = Blocks(32, 64, 4, 3) if spec.causal else Blocks(64, 64, 4, 3)
        return (
            best, Blocks(32, 128, 4, 4), Blocks(64, 64, 4, 3), Blocks(64, 128, 4, 2),
            Blocks(64, 128, 8, 3), Blocks(32, 64, 4, 4),
        )  # fmt: skip
    if widest <= 128:
        return (Blocks(32, 128, 8, 3), Blocks(32, 64, 4, 3), Blocks(64, 64, 8, 2))
    return (Blocks(32, 32, 4, 1), Blocks(32, 64, 8, 1))


def _queries_measured(spec: AttentionSpec) -> tuple[Blocks, ...]:
    widest = max(padded(spec.head), padded(spec.value_head))
    if widest <= 64:
        best = Blocks(64, 32, 4, 3) if spec.causal else Blocks(128, 32, 4, 3)
        return (
            best, Blocks(128, 32, 4, 4), Blocks(64, 64, 4, 3), Blocks(64, 32, 4, 4),
            Blocks(128, 64, 8, 3), Blocks(64, 128, 4, 2),
        )  # fmt: skip
    if widest <= 128:
        return (Blocks(128, 32, 8, 3), Blocks(64, 32, 4, 3), Blocks(64, 64, 8, 2))
    return (Blocks(32, 32, 4, 1), Blocks(64, 32, 8, 1))
