"""Sessions: states between calls, rewinding, saving to files."""
