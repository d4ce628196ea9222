"""Order writes so that they happen in place, with a proof; see `passes/README.md`."""

from kvc.compiler.place.proof import (
    Proof,
    Verdict,
    in_write_order,
    prove,
    prove_all,
)

__all__ = ["Proof", "Verdict", "in_write_order", "prove", "prove_all"]
