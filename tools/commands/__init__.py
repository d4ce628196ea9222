"""One file per command; what a command needs is imported inside its function.

So `kvc --help` starts at once, and `kvc dump` and `kvc verify` without torch.
"""
