"""The checks that compiler and runtime run: structure, semantics, memory, effects.

`verify_program` and `verify_index` take decoded values, or values that are about to be
encoded, and raise an error for the first mistake.
"""

from kvc.schema.verify.semantics import verify_index, verify_outline, verify_program

__all__ = ["verify_index", "verify_outline", "verify_program"]
