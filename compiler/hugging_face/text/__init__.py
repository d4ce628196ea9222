"""Decoders with their caches, and the methods that they export."""
