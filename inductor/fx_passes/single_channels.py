"""Convolutions whose results each read one channel: on a GPU they are loops of ours.

They have no product for matrix units, so no layout or padding for these helps them.
"""

from __future__ import annotations

from collections.abc import Sequence

# Results of a convolution of one channel. A blur or a resampling has one for each image (StyleGAN's
# filters lay channels as images); many results are a GEMM for the library. Chosen, not measured.
MOST_RESULTS_OF_ONE = 4


def reads_single_channels(
    channels: object, weight: Sequence[object], groups: object, transposed: bool
) -> bool:
    """channels: of what is convolved, in all groups. weight: its sizes as `aten.convolution` takes
    them. True for depthwise convolutions, with any number of results for each channel, and for
    those of one channel in all to few results."""
    if type(groups) is not int or groups != channels:
        return False
    results = weight[1] if transposed else weight[0]
    return groups > 1 or type(results) is int and results <= MOST_RESULTS_OF_ONE
