"""What each state is, what counts tokens, what an index is: found before lowering."""
