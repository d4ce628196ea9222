"""The `kvc` command line, over compiler and runtime."""
