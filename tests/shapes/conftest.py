"""A defect of the compiler fails a test here; it is not run in eager.

`DEVICE=cuda pytest -m long tests/shapes/test_default_backend.py tests/shapes/test_user_programs.py`
runs them on a GPU: all tensors that name no device are made there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import dynamo

if "DEVICE" in os.environ:  # before the test modules make their modules
    torch.set_default_device(os.environ["DEVICE"])
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(autouse=True)
def errors_are_shown() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield
