"""Measure how well a model predicts a text: tokens in, bits for each of them out.

`windows.py` cuts a text into windows, `scorers.py` runs one with the methods that a
program has, `score.py` adds up.
"""

from kvc.runtime.scoring.score import Score, score_tokens
from kvc.runtime.scoring.windows import Window, cut_windows

__all__ = ["Score", "Window", "cut_windows", "score_tokens"]
