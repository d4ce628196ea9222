"""Kernels: one torch function for each operator of the table."""
