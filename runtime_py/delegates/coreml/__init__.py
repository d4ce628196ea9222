"""The run-time part of the backend `coreml`: Apple's Core ML.

backend.py: the delegate's interface; numbers on the host, by halves.py
functions.py > translation.py, places.py, operators.py, moves.py, attention.py
        > mil.py (a program as values)
package.py > worker.py (a process with coremltools)
"""

from kvc.runtime.delegates.coreml.backend import CoreMl

__all__ = ["CoreMl"]
