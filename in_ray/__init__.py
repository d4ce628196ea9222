"""Run bundles over a Ray cluster: `pip install 'kvc[ray]'`.

    dataset --build_processor--> dataset with answers
    rows of kvc batch --RayAnswering--> outcomes, for a journal
    bundles and a text --evaluate--> the figures of kvc eval
    models, recipes and a text --sweep--> a row for each model and recipe

The page is serving/batch/BATCH.md.
"""

from kvc.ray.answering import RayAnswering
from kvc.ray.config import BundleConfig
from kvc.ray.evaluation import evaluate
from kvc.ray.evaluator import EvaluationConfig
from kvc.ray.processor import Processor, build_processor
from kvc.ray.sweeper import SweepConfig, SweepRow
from kvc.ray.sweeps import sweep, sweep_table

__all__ = [
    "BundleConfig",
    "EvaluationConfig",
    "Processor",
    "RayAnswering",
    "SweepConfig",
    "SweepRow",
    "build_processor",
    "evaluate",
    "sweep",
    "sweep_table",
]
