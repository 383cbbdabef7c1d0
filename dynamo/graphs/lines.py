"""The line of the user's program that a node of a graph came from.

In: a node with a `stack_trace`, as `dynamo.export`, a backend's graph or `torch.fx` give it.
Out: one `Line`. Frames of torch itself are not the user's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch
from torch import fx

TORCH = os.path.dirname(torch.__file__) + os.sep
FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<number>\d+)(?:, in (?P<function>\S+))?\n\s*(?P<text>.*)'
)


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """file: its path. number: counted from 1; 0 where nothing is known. text: the source."""

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        if not self.number:
            return "(unknown line)"
        return f"{os.path.basename(self.file)}:{self.number} {self.text}"


UNKNOWN = Line("", 0, "", "")


def user_line(node: fx.Node) -> Line:
    """The innermost frame outside of torch, or the innermost one at all.

    >>> graph = fx.Graph()
    >>> user_line(graph.placeholder("x")).number
    0
    """
    found = [
        Line(m["file"], int(m["number"]), m["function"] or "", m["text"].strip())
        for m in FRAME.finditer(node.stack_trace or "")
    ]
    own = [line for line in found if not line.file.startswith(TORCH)]
    return (own or found or [UNKNOWN])[-1]
