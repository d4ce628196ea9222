"""Which writes happen where the old value lies, by proof; see `passes/README.md`."""

from kvc.compiler.in_place.proof import Proof, Verdict, prove

__all__ = ["Proof", "Verdict", "prove"]
