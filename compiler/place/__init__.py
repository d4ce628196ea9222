"""Decide where values lie in memory: writes in place, with a proof; the memory plan."""

from kvc.compiler.place.proof import (
    Proof,
    Verdict,
    in_write_order,
    prove,
    prove_all,
)

__all__ = ["Proof", "Verdict", "in_write_order", "prove", "prove_all"]
