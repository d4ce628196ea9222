"""The run-time part of the backend `ethosu`: Arm's Ethos-U NPUs, by way of TOSA.

    partition + grids + weights --lowering.py--> a TOSA graph of integers only
    TOSA graph --evaluate.py--> its results, computed on the host
    TOSA graph --tosa_file.py--> a TOSA file --vela.py--> a command stream for the NPU

A grid is the scale and the integer type of a value; see `kvc.schema.backends.grids`.
`backend.py` has the delegate, `numbers.py` converts scales to integers.
"""

from kvc.runtime.delegates.ethosu.backend import EthosU

__all__ = ["EthosU"]
