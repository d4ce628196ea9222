"""Support lists of the backends: one list each, shared by compiler and runtime.

The compiler selects nodes for a backend by the backend's list; the runtime refuses a
block that holds any other operator. Nothing here needs a backend's library, or torch.
"""
