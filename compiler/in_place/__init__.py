"""Which writes happen where the old value lies, by proof; see `passes/README.md`."""

from kvc.compiler.in_place.proof import Proof, Verdict, prove, prove_all

__all__ = ["Proof", "Verdict", "prove", "prove_all"]
