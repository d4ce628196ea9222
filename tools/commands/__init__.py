"""One file per command; a command imports what it needs inside its function.

Therefore `kvc --help` starts at once, and `kvc dump` and `kvc verify` without torch.
"""
