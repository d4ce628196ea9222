"""Run-time halves of backends: `table.py` says which there are."""
