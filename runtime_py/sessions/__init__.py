"""Sessions: states that persist between calls, rewinding, saving to files."""
