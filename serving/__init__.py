"""Serving: many requests at once on one bundle; `scheduling` has the core."""
