"""The run-time part of the backend `coreai`; README.md describes it."""

from kvc.runtime.delegates.coreai.backend import CoreAI

__all__ = ["CoreAI"]
