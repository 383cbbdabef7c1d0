"""Operators of our own that graphs hold: `dynamo_jit::*`."""
