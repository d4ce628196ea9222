"""One call of a method: its inputs, its sizes, the room it needs, and its undo."""
