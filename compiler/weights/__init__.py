"""Values of constants: where they come from, and as which numbers they are stored."""
