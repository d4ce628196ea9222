"""Methods bound to sizes and memory, and what runs them."""
