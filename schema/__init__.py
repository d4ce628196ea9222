"""Definitions shared by compiler and runtime: bundle format, values, errors, checks.

Compiler and runtime both import this package; this package imports neither of the two.
It needs numpy, flatbuffers and ml_dtypes. Only `kvc.schema.torch_ops` needs torch, and
nothing else in this package imports `torch_ops`.
"""
