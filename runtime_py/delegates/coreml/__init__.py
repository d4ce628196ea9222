"""The run-time part of the backend `coreml`: Apple's Core ML.

backend.py      the delegate; runs partitions on the host, rounding to float16
functions.py    makes all functions of a package, with translation.py and places.py;
                forms.py has what Core ML has in place of the common lowering
calls.py        writes a lowered method as calls of MIL, Core ML's language
mil.py          a function of MIL as plain values
package.py      writes functions as a package, by worker.py (a process with coremltools)
"""

from kvc.runtime.delegates.coreml.backend import CoreMl

__all__ = ["CoreMl"]
