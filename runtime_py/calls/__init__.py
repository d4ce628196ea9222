"""One call of a method: what it takes, what it asks for, all of it or nothing."""
