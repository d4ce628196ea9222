"""Convert the program, whose writes are checked, to structures of the bundle file."""
