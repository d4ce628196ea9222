"""The run-time part of the backend `qnn`: Qualcomm's HTP; README.md lists tests."""

from kvc.runtime.delegates.qnn.backend import Qnn

__all__ = ["Qnn"]
