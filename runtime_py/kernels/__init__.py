"""One torch function for each op of the table."""
