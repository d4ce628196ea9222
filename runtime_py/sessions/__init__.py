"""Sessions: states from one call to the next, going back, files of them."""
