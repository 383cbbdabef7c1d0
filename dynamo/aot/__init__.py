"""Functional ATen graphs out of captured programs: a service for backends (see `api`)."""

from dynamo.aot.api import compile_inference, compile_training
from dynamo.aot.capture import capture_forward
from dynamo.aot.decompose import decompose
from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.records import AtenGraph, Unsupported

__all__ = [
    "AtenGraph",
    "Unsupported",
    "capture_forward",
    "compile_inference",
    "compile_training",
    "decompose",
    "default_decompositions",
]
