"""Build kvc's compiled kernels, in parallel; pyproject.toml has all other settings."""

from pybind11.setup_helpers import ParallelCompile
from setuptools import setup

# Only this is used of pybind11: setuptools compiles one file after another.
ParallelCompile("KVC_BUILD_JOBS").install()
setup()
