"""Tools on `torch.fx` graphs: costs, pictures, splitting, rewriting, folding, int8.

They take what `dynamo.export(f, *args)` or any backend gets, and give graphs of the same kind.
"""

from tools.cost import Cost, Costs, Peaks, analyze, measure_peaks
from tools.draw import draw, modules_of, to_html, to_svg
from tools.fold import fold_batch_norms
from tools.kernels import kernels_of
from tools.lines import Line, user_line
from tools.quantize import calibrate, convert, quantize_dynamic
from tools.rewrite import rewrite
from tools.split import split_by, split_stages
from tools.streams import Overlapped, lanes_of, overlap

__all__ = [
    "Cost", "Costs", "Line", "Overlapped", "Peaks", "analyze", "calibrate", "convert", "draw",
    "fold_batch_norms", "kernels_of", "lanes_of", "measure_peaks", "modules_of", "overlap",
    "quantize_dynamic", "rewrite", "split_by", "split_stages", "to_html", "to_svg", "user_line",
]  # fmt: skip
