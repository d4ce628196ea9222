"""Convert the proven program to the structures of the bundle file."""
