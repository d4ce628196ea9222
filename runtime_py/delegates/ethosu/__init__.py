"""The run-time part of the backend `ethosu`: Arm's Ethos-U NPUs, by way of TOSA.

    partition + grids + weights --lowering.py--> TOSA graph, integers alone
      --evaluate.py--> its numbers, on the host
      --tosa_file.py--> a TOSA file --vela.py--> a command stream for the NPU

`backend.py` has the delegate, `numbers.py` the scales of integers.
"""

from kvc.runtime.delegates.ethosu.backend import EthosU

__all__ = ["EthosU"]
