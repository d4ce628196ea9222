"""Language models that take pictures."""
