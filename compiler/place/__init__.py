"""Where values lie: writes in place, with a proof, and the memory plan."""

from kvc.compiler.place.proof import (
    Proof,
    Verdict,
    in_write_order,
    prove,
    prove_all,
)

__all__ = ["Proof", "Verdict", "in_write_order", "prove", "prove_all"]
