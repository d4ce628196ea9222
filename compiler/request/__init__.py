"""What is asked of the compiler: a model's methods, what they may change, releases."""
