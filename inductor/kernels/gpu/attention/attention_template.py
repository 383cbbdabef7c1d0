"""One set of attention kernels, whatever happens to the scores and whichever blocks are visited.

The texts of `forward` and `backward` are templates with slots, `<name>`. `Scores` and `Walk` fill
them: those of plain attention are in `plain`, those of flex attention in `codegen.flex.kernels`.
A slot that is alone on its line stands for lines, which are indented as it is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from inductor.kernels.gpu.attention.backward import BACKWARD, RUN_KEYS, RUN_QUERIES
from inductor.kernels.gpu.attention.forward import FORWARD, RUN_FORWARD

FACTS: Final = """\
N_Q: tl.constexpr, N_K: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
HAS_BIAS: tl.constexpr, BB: tl.constexpr, BH: tl.constexpr, BM: tl.constexpr,
BN: tl.constexpr, HAS_MASK: tl.constexpr, MB: tl.constexpr, MH: tl.constexpr,
MM: tl.constexpr, MN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
"""
PASSED: Final = """\
N_Q, N_K, SCALE, CAP, HAS_BIAS, BB, BH, BM, BN, HAS_MASK, MB, MH, MM, MN, CAUSAL, WINDOW"""
# Whether the mask is read before the loop over keys: one that is the same for all queries.
SCANS: Final = "HAS_MASK and MM == 0 and N_K <= 8192"
SLOT: Final = re.compile(r"^(?P<indent> *)<(?P<lines>\w+)>\n|<(?P<words>\w+)>", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scores:
    """What is done to the scores.

    functions: the Triton functions `attention_masked`, `attention_scores`, `attention_weights` and
    `attention_slope`. tensors: what they read, a comma behind each; masks: what the first reads.
    weights: what the third gives; slope: further arguments of the fourth, with {rows} and
    {columns}. nothing: the log-sum-exp of a row that sees nothing. unseen: lines that change dk and
    dv at the end.
    """

    functions: str
    tensors: str
    masks: str
    weights: str
    slope: str
    nothing: str
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of a loop over blocks, from begin to end. edge: some of their scores are left out.
    checked: a block may reach beyond the last row or column. table: what the loop reads, if any.
    masked: whether the mask is looked at. skip: values of `Walk.skips`."""

    begin: str
    end: str
    edge: str
    checked: str
    table: str = ""
    masked: str = "HAS_MASK"
    skip: str = ""


@dataclass(frozen=True, slots=True)
class Loops:
    """Lines, and what their slots stand for."""

    lines: str
    visits: Mapping[str, Visit]

    def of(self, call: str) -> str:
        """The lines where `call` is the text that runs the loop."""
        return fill(self.lines, {
            name: call.format(**asdict(one), passed=PASSED.replace("HAS_MASK", one.masked))
            for name, one in self.visits.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """Which blocks are visited.

    block: of the number of a program, which block of queries it computes (if not CAUSAL).
    over_keys, over_queries: the loops. each_keys, each_queries: the head of a loop, which sets
    `start`. tensors, constants, table: what kernels, and their loops, get for that; skips: what
    loops over keys get, a comma behind each. functions: what the kernels call for it.
    """

    block: str
    over_keys: Loops
    over_queries: Loops
    each_keys: str
    each_queries: str
    tensors: str = ""
    constants: str = ""
    table: str = ""
    skips: str = ""
    functions: str = ""


def render(scores: Scores, walk: Walk, head: str) -> str:
    """The module of all kernels. head: its first lines."""
    shared = {
        "facts": FACTS, "passed": PASSED, "tensors": scores.tensors, "masks": scores.masks,
        "passed_of_keys": PASSED.replace("HAS_MASK", "MASKS_SCORES"), "weights": scores.weights,
        "nothing": scores.nothing, "unseen": scores.unseen,
        "walk_tensors": walk.tensors, "walk_constants": walk.constants, "table": walk.table,
        "skips": walk.skips,
        "block": walk.block, "each_keys": walk.each_keys, "each_queries": walk.each_queries,
        "over_keys": walk.over_keys.of(RUN_FORWARD), "stores": "", "scans": SCANS,
        "slope": scores.slope.format(rows="rows[:, None]", columns="columns[None, :]"),
        "slope_turned": scores.slope.format(rows="rows[None, :]", columns="columns[:, None]"),
    }  # fmt: skip
    backward = shared | {
        "over_keys": walk.over_keys.of(RUN_QUERIES), "stores": "HAS_DB or ",
        "scans": "False",
        "over_queries": walk.over_queries.of(RUN_KEYS),
    }  # fmt: skip
    functions = scores.functions + walk.functions
    return head + fill(functions + FORWARD, shared) + fill(BACKWARD, backward)


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its slots filled, and those of what fills them; others stay."""

    def value(match: re.Match[str]) -> str:
        name = match["lines"] or match["words"]
        if name not in values:
            return match[0]
        lines = fill(values[name], values)
        if match["lines"] is None:
            return lines
        return textwrap.indent(lines if not lines or lines.endswith("\n") else lines + "\n",
                               match["indent"])

    return SLOT.sub(value, text)
