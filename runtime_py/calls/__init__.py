"""One call of a method: its inputs, its sizes, its needs, and undoing it if it fails."""
