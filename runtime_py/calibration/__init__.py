"""Find the ranges of values, for backends that store values as integers.

    samples + bundle --observe--> ranges of the values of each partition

`samples.py` has the public interface. `token_calls.py` and `array_calls.py` call the
model's methods; `observing.py` runs the calls by the reference implementation and
records the ranges.
"""

from kvc.runtime.calibration.samples import Samples

__all__ = ["Samples"]
