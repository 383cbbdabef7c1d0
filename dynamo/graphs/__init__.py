"""Tools on `torch.fx` graphs: costs, pictures, splitting, rewriting, folding, int8.

They take what `dynamo.export(f, *args)` or any backend gets, and give graphs of the same kind. What
is int8 is loaded when it is asked for: its operators are none of torch's, and where they are known,
compiled graphs are not cached on disk.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dynamo.graphs.cost import Cost, Costs, Peaks, analyze, measure_peaks
from dynamo.graphs.draw import draw, modules_of, to_html, to_svg
from dynamo.graphs.fold import fold_batch_norms
from dynamo.graphs.kernels import kernels_of
from dynamo.graphs.lines import Line, user_line
from dynamo.graphs.rewrite import rewrite
from dynamo.graphs.split import split_by, split_stages
from dynamo.graphs.streams import Overlapped, lanes_of, overlap

if TYPE_CHECKING:
    from dynamo.graphs.quantize import calibrate, convert, quantize_dynamic

__all__ = [
    "Cost", "Costs", "Line", "Overlapped", "Peaks", "analyze", "calibrate", "convert", "draw",
    "fold_batch_norms", "kernels_of", "lanes_of", "measure_peaks", "modules_of", "overlap",
    "quantize_dynamic", "rewrite", "split_by", "split_stages", "to_html", "to_svg", "user_line",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("calibrate", "convert", "quantize_dynamic"):
        return getattr(importlib.import_module("dynamo.graphs.quantize"), name)
    raise AttributeError(f"module 'dynamo.graphs' has no attribute {name!r}")
