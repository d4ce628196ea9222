"""Bind methods to sizes and memory, and run the bound methods."""
