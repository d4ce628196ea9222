"""What both sides of a bundle agree on: format, values, errors and checks.

Compiler and runtime both import this package and it imports neither. It needs
numpy, flatbuffers and ml_dtypes; torch only in `kvc.schema.torch_ops`, which
nothing here imports.
"""
