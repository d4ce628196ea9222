"""The run-time part of the backend `coreml`: Apple's Core ML.

backend.py      the delegate; runs partitions on the host, rounding to float16
functions.py    makes all functions of a package, with translation.py, places.py,
                operators.py, moves.py and attention.py
mil.py          a function of MIL, Core ML's language, as plain values
package.py      writes functions as a package, by worker.py (a process with coremltools)
"""

from kvc.runtime.delegates.coreml.backend import CoreMl

__all__ = ["CoreMl"]
