"""Models without a cache, and the encoders of models with a cache."""
