"""The backend `qnn`, at run time: Qualcomm's HTP; README.md says what has been run."""

from kvc.runtime.delegates.qnn.backend import Qnn

__all__ = ["Qnn"]
