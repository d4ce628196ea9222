"""Definitions shared by compiler and runtime: bundle format, values, errors, checks.

Compiler and runtime both import this package and it imports neither. It needs
numpy, flatbuffers and ml_dtypes; torch only in `kvc.schema.torch_ops`, which
nothing here imports.
"""
