"""Caches of a model's layers, and the classes that write them."""
