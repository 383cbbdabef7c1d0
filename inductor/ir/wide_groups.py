"""Which grouped convolutions of images in half precision on a GPU are templates, unmeasured.

cuDNN has kernels for groups of 4, 8, 16 and 32 channels. Wider groups it cuts out of the images,
and has a convolution for each: on an H200 16 images of 432 x 14 x 14 in groups of 48, with zeros
up to 64, take 9 copies and 9 convolutions. Those are ours. Passes ask this before they put zeros
behind the channels of a group, and `codegen/triton/template_likely.py` where it chooses.
"""

from __future__ import annotations

MOST_OF_LIBRARY = 32  # channels and results of a group for which the library has a kernel
FEWEST_OF_UNITS = 16  # columns, and terms, of matrix units
WORD = 8  # channels that are loaded at once


def are_wide(channels: int, results: int) -> bool:
    """Whether groups of so many channels and results are too wide for the library's kernels.

    >>> are_wide(32, 32), are_wide(48, 48), are_wide(16, 64)
    (False, True, True)
    """
    return max(channels, results) > MOST_OF_LIBRARY


def padded_width(width: int) -> int:
    """How many channels a wide group has, with zeros, so that a template may take it.

    >>> padded_width(48), padded_width(50), padded_width(3)
    (48, 56, 16)
    """
    return max(FEWEST_OF_UNITS, (width + WORD - 1) // WORD * WORD)


def suits_template(channels: int, results: int) -> bool:
    """Whether groups are wide, and their channels loaded whole words at a time.

    >>> suits_template(48, 48), suits_template(50, 48), suits_template(32, 32)
    (True, False, False)
    """
    whole = all(padded_width(width) == width for width in (channels, results))
    return whole and are_wide(channels, results)
