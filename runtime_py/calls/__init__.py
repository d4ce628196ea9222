"""One call of a method: its inputs, its sizes, its demands, and how it is undone."""
