"""Turn the proven program into what the file says."""
