"""Find what counts tokens, what each state is and what an index is, before lowering."""
