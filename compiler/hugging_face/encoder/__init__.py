"""Models without a cache, and the encoders of models with one."""
