"""Models that ship with kvc: a small decoder and the trained demo model."""
