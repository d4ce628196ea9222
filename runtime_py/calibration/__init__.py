"""Find out how large values become, for backends that store them as integers.

    samples + bundle --observe--> ranges of the values of each partition

`samples.py` is the door; `token_calls.py` and `array_calls.py` make the calls,
`observing.py` runs them by the reference and notes.
"""

from kvc.runtime.calibration.samples import Samples

__all__ = ["Samples"]
