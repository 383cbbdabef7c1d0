"""What is saved so that no decision is made twice, and what is not saved for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from dynamo.aot.joint import capture_joint
from dynamo.aot.decompose import decompose
from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.min_cut import min_cut
from dynamo.aot.partition import partition_joint
from dynamo.aot.repeats import EXACT, FUNCTIONS, SMOOTH
