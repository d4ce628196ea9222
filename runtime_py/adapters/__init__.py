"""Adapters: their files, and the adapters that a program has loaded into its slots."""
