"""Run-time halves of backends; `table.py` lists them."""
