"""Turn exported programs into the IR; the only reader of fx graphs."""

from kvc.compiler.ingest.program import import_program

__all__ = ["import_program"]
