"""One call of a method: its inputs, its sizes, the slots it needs, and its undo."""
