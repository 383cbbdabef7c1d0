"""Tools on `torch.fx` graphs: costs, pictures, splitting, rewriting, folding, int8.

They take what `dynamo.export(f, *args)` or any backend gets, and give graphs of the same kind. What
is int8 is loaded when it is asked for: its operators are none of torch's, and where they are known,
compiled graphs are not kept on disk.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tools.cost import Cost, Costs, Peaks, analyze, measure_peaks
from tools.draw import draw, modules_of, to_html, to_svg
from tools.fold import fold_batch_norms
from tools.kernels import kernels_of
from tools.lines import Line, user_line
from tools.rewrite import rewrite
from tools.split import split_by, split_stages
from tools.streams import Overlapped, lanes_of, overlap

if TYPE_CHECKING:
    from tools.quantize import calibrate, convert, quantize_dynamic

__all__ = [
    "Cost", "Costs", "Line", "Overlapped", "Peaks", "analyze", "calibrate", "convert", "draw",
    "fold_batch_norms", "kernels_of", "lanes_of", "measure_peaks", "modules_of", "overlap",
    "quantize_dynamic", "rewrite", "split_by", "split_stages", "to_html", "to_svg", "user_line",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("calibrate", "convert", "quantize_dynamic"):
        return getattr(importlib.import_module("tools.quantize"), name)
    raise AttributeError(f"module 'tools' has no attribute {name!r}")
