"""What an export says of itself: metadata, a configuration, generation settings.

In: the methods and metadata of a bundle, and the model that it was compiled from, if
there is one. Out: what `ExportedModel` keeps beside the bundle.
"""

import inspect
import json
import os
import typing
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path as File
from typing import Any, Final, cast

import torch
from torch.utils import _pytree
from transformers import GenerationConfig, PreTrainedConfig
from transformers.exporters.metadata import ExportMetadata
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils.generic import ModelOutput

from kvc.schema.model import Method
from kvc.transformers.interface import Interface, interface_of

_PACKAGES: Final = ("transformers", "torch", "kvc")
_LOGITS: Final = "logits"

Path = str | os.PathLike[str]


class KvcModelConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # untyped
    """The configuration of a bundle that has no config.json beside it.

    Attributes:
        vocab_size: the number of logits of a token.
        architecture: the model type that the bundle was compiled from, if it says so.
    """

    model_type = "kvc"
    vocab_size: int = 0
    architecture: str | None = None


class AsItIs(GenerationConfig):
    """Generation settings that are saved as they are.

    Folders of models have settings that transformers reads, and refuses to write, such
    as a temperature without `do_sample`.
    """

    def save_pretrained(self, save_directory: Path, *_: object, **__: object) -> None:
        """Write generation_config.json."""
        self.to_json_file(File(save_directory) / GENERATION_CONFIG_NAME)


def as_it_is(settings: GenerationConfig) -> AsItIs:
    """Return settings that are saved as they are."""
    return cast(AsItIs, AsItIs.from_dict(settings.to_dict()))


def config_of(methods: Iterable[Method], metadata: Mapping[str, str]) -> KvcModelConfig:
    """Return the configuration of a bundle that generates text.

    Raises:
        UnknownName: it does not.
    """
    methods = list(methods)
    interface = interface_of(methods, metadata)
    decode = next(method for method in methods if method.role == "decode")
    logits = decode.graph.values[decode.graph.outputs[0]].type
    return KvcModelConfig(
        vocab_size=int(cast(int, logits.dims[-1])),
        is_encoder_decoder=interface.encodes,
        architecture=json.loads(metadata.get("architecture", "null")),
    )


def generation_of(metadata: Mapping[str, str]) -> AsItIs:
    """Return the generation settings of a bundle."""
    said = json.loads(metadata.get("generation_config", "{}"))
    return cast(AsItIs, AsItIs.from_dict(said))


def metadata_of(interface: Interface, model: object = None) -> ExportMetadata:
    """Return what an export says of a bundle with a cache.

    Args:
        interface: what the bundle takes.
        model: the model that it was compiled from, if there is one.
    """
    kind = _output_of(model)
    if kind is None:
        kind = Seq2SeqLMOutput if interface.encodes else CausalLMOutputWithPast
    made = described(model)
    made.kwargs = {name: {} for name in interface.names}
    made.out_spec = spec_of(kind(**{_LOGITS: torch.zeros(1)}))
    return made


def described(model: object = None) -> ExportMetadata:
    """Return what an export says of any bundle."""
    return ExportMetadata(
        architecture=None if model is None else type(model).__name__,
        packages={name: version(name) for name in _PACKAGES},
        export_dtype="float32",
        export_device="cpu",
    )


def spec_of(outputs: object) -> str:
    """Return the structure of a model's outputs, as `ModelRunner` reads it."""
    return _pytree.treespec_dumps(_pytree.tree_flatten(outputs)[1])


def _output_of(model: object) -> type[ModelOutput] | None:
    """Return the class of a model's outputs with logits, as its forward declares it."""
    forward = inspect.unwrap(getattr(type(model), "forward", lambda: None))
    try:
        declared: Any = typing.get_type_hints(forward).get("return")
    except NameError:  # a name that is imported for types alone
        return None
    for one in (declared, *typing.get_args(declared)):
        fields = getattr(one, "__dataclass_fields__", {})
        if inspect.isclass(one) and issubclass(one, ModelOutput) and _LOGITS in fields:
            return one
    return None
