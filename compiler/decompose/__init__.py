"""Replace operators that the runtime does not have by operators of the table."""
