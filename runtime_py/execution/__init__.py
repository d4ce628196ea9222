"""Bind methods to sizes and memory, and run them."""
