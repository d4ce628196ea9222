"""The checks that both sides run: structure, semantics, memory, effects.

`verify_program` and `verify_payload` take what the codec decoded, or what the
compiler is about to write, and raise the first thing that is wrong.
"""

from kvc.schema.verify.effects import state_effects
from kvc.schema.verify.programs import verify_payload, verify_program

__all__ = ["state_effects", "verify_payload", "verify_program"]
