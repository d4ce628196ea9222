"""Run bundles over a Ray cluster: `pip install 'kvc[ray]'`.

    dataset --build_processor--> dataset with answers
    rows of kvc batch --RayAnswering--> outcomes, for a journal
    bundles and a text --evaluate--> the figures of kvc eval

The page is serving/batch/BATCH.md.
"""

from kvc.ray.answering import RayAnswering
from kvc.ray.config import BundleConfig
from kvc.ray.evaluation import evaluate
from kvc.ray.evaluator import EvaluationConfig
from kvc.ray.processor import Processor, build_processor

__all__ = [
    "BundleConfig",
    "EvaluationConfig",
    "Processor",
    "RayAnswering",
    "build_processor",
    "evaluate",
]
