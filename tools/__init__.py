"""The `kvc` command line: reads bundles and prints, drives compiler and runtime."""
