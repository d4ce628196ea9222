"""Programs and data files of ExecuTorch, `.pte` and `.ptd`, described by `kvc dump`.

In: a file. Out: reports as of a bundle, as far as such a file says so. Nothing of it is
run, and the data of weights is never read.
"""
