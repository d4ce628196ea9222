"""Run bundles over a Ray cluster: `pip install 'kvc[ray]'`.

    dataset --build_processor--> dataset with answers
    rows of kvc batch --RayAnswering--> outcomes, for a journal

The page is serving/batch/BATCH.md.
"""

from kvc.ray.answering import RayAnswering
from kvc.ray.config import BundleConfig
from kvc.ray.processor import Processor, build_processor

__all__ = ["BundleConfig", "Processor", "RayAnswering", "build_processor"]
