"""One file for each command; what a command needs is imported inside it.

So `kvc --help` starts in a moment, and `kvc dump` and `kvc verify` without torch.
"""
