"""Passes: pure functions from a program to a program, each for one change."""

from kvc.compiler.passes.base import Pass, PassReport, run_passes

__all__ = ["Pass", "PassReport", "run_passes"]
