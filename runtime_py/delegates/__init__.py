"""Run-time parts of backends; `table.py` lists them."""
