"""Replacements for transformers' attention, masks and experts."""
