"""Caches of the layers, and the classes that write them."""
