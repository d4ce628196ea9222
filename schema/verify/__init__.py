"""The checks that both sides run: structure, semantics, memory, effects.

`verify_program` and `verify_index` take what the codec decoded, or what is about to be
written, and raise the first thing that is wrong.
"""

from kvc.schema.verify.semantics import verify_index, verify_program

__all__ = ["verify_index", "verify_program"]
