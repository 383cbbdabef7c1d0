"""Functional ATen graphs out of captured programs: a service for backends (see `api`)."""

from dynamo.aot.api import compile_inference
from dynamo.aot.capture import capture_forward
from dynamo.aot.records import AtenGraph, Unsupported

__all__ = ["AtenGraph", "Unsupported", "capture_forward", "compile_inference"]
