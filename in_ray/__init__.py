"""Run bundles over a Ray cluster."""
