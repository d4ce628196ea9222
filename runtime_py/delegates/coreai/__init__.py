"""The run-time half of the backend `coreai`; README.md says what it does."""

from kvc.runtime.delegates.coreai.backend import CoreAI

__all__ = ["CoreAI"]
