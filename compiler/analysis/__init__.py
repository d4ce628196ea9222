"""Find the token cursors, the kinds of states and the ranges of indices."""
