"""Measure how well a model predicts a text: tokens in, bits per token out.

`scorers.py` cuts a text into windows and runs each window with the methods of a
program, `divergence.py` compares a model with a reference model, `window_scores.py`
scores a window, `score.py` adds up the bits, and `evaluation.py` tells them of a
bundle and a text.
"""

from kvc.runtime.scoring.divergence import Divergence
from kvc.runtime.scoring.evaluation import (
    Evaluation,
    Subject,
    evaluate,
    evaluation_of,
    subject_of,
)
from kvc.runtime.scoring.score import Score, score_of, score_tokens
from kvc.runtime.scoring.scorers import (
    TextWindow,
    WindowTokens,
    cut_tokens,
    cut_windows,
)
from kvc.runtime.scoring.window_scores import WindowScore, WindowScorer

__all__ = [
    "Divergence",
    "Evaluation",
    "Score",
    "Subject",
    "TextWindow",
    "WindowScore",
    "WindowScorer",
    "WindowTokens",
    "cut_tokens",
    "cut_windows",
    "evaluate",
    "evaluation_of",
    "score_of",
    "score_tokens",
    "subject_of",
]
