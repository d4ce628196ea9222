"""What torch traces as one operator or not at all, by operators of the table."""
