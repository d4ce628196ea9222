"""One call of a method: its inputs, its sizes, its needs, and how it is undone."""
