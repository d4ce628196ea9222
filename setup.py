"""Compile kvc's kernels side by side; all else is in pyproject.toml."""

from pybind11.setup_helpers import ParallelCompile
from setuptools import setup

# Only this is used of pybind11: setuptools compiles one file after another.
ParallelCompile("KVC_BUILD_JOBS").install()
setup()
