"""Loaded bundles that are served: texts, messages, adapters, vectors, speech."""
