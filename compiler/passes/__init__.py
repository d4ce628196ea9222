"""Passes: pure functions from a program to a program, one idea each."""

from kvc.compiler.passes.base import Pass, PassReport, run_passes

__all__ = ["Pass", "PassReport", "run_passes"]
