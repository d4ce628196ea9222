"""kvc in transformers: an export format, and models that `generate` drives.

Importing this module registers the format "kvc" with `transformers.exporters`, and the
classes of models with pipelines. TRANSFORMERS.md says how to use them.

Raises:
    MissingTransformers: transformers is not installed.
    WrongTransformers: the installed version is outside of the tested range.
"""

from transformers.exporters.auto import EXPORT_BACKENDS, register_backend

import kvc.compiler.hugging_face  # noqa: F401  checks the version before all else
from kvc.transformers.cache import KvcCache
from kvc.transformers.config import FORMAT, KvcConfig
from kvc.transformers.exporter import KvcExporter
from kvc.transformers.models import (
    KvcForCausalLM,
    KvcForConditionalGeneration,
    register_models,
)
from kvc.transformers.runner import KvcModelRunner

__all__ = [
    "KvcCache",
    "KvcConfig",
    "KvcExporter",
    "KvcForCausalLM",
    "KvcForConditionalGeneration",
    "KvcModelRunner",
]

if FORMAT not in EXPORT_BACKENDS:  # which would be told as a mistake
    register_backend(KvcExporter, KvcModelRunner)
register_models()
