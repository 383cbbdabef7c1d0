"""Traced frames on disk: what a new process needs to run a frame without tracing it."""
