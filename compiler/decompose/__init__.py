"""Replace operators that the runtime does not have by operators that it has."""
