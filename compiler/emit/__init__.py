"""From the proven program to what the file says."""
