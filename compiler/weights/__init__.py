"""Sources of the values of constants, and the formats in which they are stored."""
