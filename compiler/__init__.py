"""kvc's compiler (imports torch)."""
