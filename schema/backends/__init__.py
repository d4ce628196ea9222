"""Support lists: a list for each backend, which compiler and runtime share.

The compiler selects nodes for a backend by the backend's list; the runtime refuses a
block with an operator that is not in the list. This package needs neither a backend's
library nor torch.
"""
