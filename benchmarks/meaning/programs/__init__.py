"""The programs, by subject; importing this package registers them."""

from benchmarks.meaning.programs import differentiation as differentiation
from benchmarks.meaning.programs import functions as functions
from benchmarks.meaning.programs import modules as modules
from benchmarks.meaning.programs import numbers as numbers
from benchmarks.meaning.programs import objects as objects
from benchmarks.meaning.programs import python as python
from benchmarks.meaning.programs import sizes as sizes
from benchmarks.meaning.programs import steps as steps
