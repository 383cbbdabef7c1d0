"""Kernels and models that run for real on a GPU: `make test-gpu`, or `pytest -m gpu tests/gpu`.

Without a GPU the tests run on the CPU, as far as they can.
"""
