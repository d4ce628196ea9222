"""Measure how well a model predicts a text: tokens in, bits per token out.

`scorers.py` cuts a text into windows and runs each window with the methods of a
program, `score.py` adds up the bits, `divergence.py` compares a model with a reference
model.
"""

from kvc.runtime.scoring.divergence import Divergence
from kvc.runtime.scoring.score import Score, score_tokens
from kvc.runtime.scoring.scorers import TextWindow, cut_windows

__all__ = ["Divergence", "Score", "TextWindow", "cut_windows", "score_tokens"]
