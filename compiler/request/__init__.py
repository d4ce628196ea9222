"""Requests to the compiler: methods, states, limits, supported releases."""
