"""The front end for Hugging Face models: from transformers to a bundle.

Raises: MissingTransformers: transformers is not installed.
"""

from importlib.util import find_spec

from kvc.schema.errors import MissingTransformers

if find_spec("transformers") is None:
    raise MissingTransformers(package="transformers")

from kvc.compiler.hugging_face.export import export_hf
from kvc.compiler.hugging_face.settings import PREFILL_CHUNK, CacheConfig

__all__ = ["PREFILL_CHUNK", "CacheConfig", "export_hf"]
