"""The front end for Hugging Face models: from transformers to a bundle.

Raises:
    MissingTransformers: transformers is not installed.
    WrongTransformers: the installed version is outside of the tested range.
"""

from importlib.util import find_spec

from kvc.compiler.request.releases import TRANSFORMERS
from kvc.schema.errors import MissingTransformers, WrongTransformers

if find_spec("transformers") is None:
    raise MissingTransformers(package="transformers")

from transformers import __version__ as installed

if not TRANSFORMERS.has(installed):
    raise WrongTransformers(found=installed, expected=str(TRANSFORMERS))

from kvc.compiler.hugging_face.attention.rotary import FrequenciesFixed
from kvc.compiler.hugging_face.caches.narrowed import FirstPositionsFar
from kvc.compiler.hugging_face.export import export_hf
from kvc.compiler.hugging_face.reading.left_out import PartLeftOut
from kvc.compiler.hugging_face.reading.settings import PREFILL_CHUNK, CacheConfig

__all__ = [
    "PREFILL_CHUNK",
    "CacheConfig",
    "FirstPositionsFar",
    "FrequenciesFixed",
    "PartLeftOut",
    "export_hf",
]
