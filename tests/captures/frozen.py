"""Imported last by the process from which the programs are forked: no collection in them walks what was imported."""

from __future__ import annotations

import gc

gc.freeze()
