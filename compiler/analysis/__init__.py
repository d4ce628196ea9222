"""What each state is and where rows stand: found once, said on the IR from then on."""

from kvc.compiler.analysis.declare import declare

__all__ = ["declare"]
