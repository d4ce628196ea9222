"""Kernels: one torch function for each operator that a program can use."""
