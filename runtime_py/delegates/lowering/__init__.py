"""One lowering for vendors' devices: graphs to functions of primitives.

README.md tells how a vendor's part uses the lowering.
"""
