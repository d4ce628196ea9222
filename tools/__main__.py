"""`python -m kvc.tools`: the `kvc` command if its script is not on the path."""

from kvc.tools.cli import main

main()
