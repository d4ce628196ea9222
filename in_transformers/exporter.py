"""`KvcExporter`: transformers' way to export, with kvc.

model, example inputs, `KvcConfig` --with a cache--> `export_hf` --> one bundle
                                   --without--> `compile_forward` --> one bundle

A model with a cache becomes one component, whatever is asked for: `prefill`, `decode`
and all other methods share weights and caches.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.exporters.base import ExportedComponent, ExportedModel, HfExporter
from transformers.exporters.metadata import ExportMetadata

from kvc.compiler import Bundle, export_hf
from kvc.compiler.hugging_face.reading.tasks import task_of
from kvc.runtime import Program, load
from kvc.schema.container import BundleFile, join_bundle
from kvc.schema.errors import BadModelSetting, UnknownTask, UnsupportedModel, listing
from kvc.transformers.config import FORMAT, KvcConfig
from kvc.transformers.description import Path, as_it_is, metadata_of
from kvc.transformers.forward_program import compile_forward
from kvc.transformers.interface import interface_of

COMPONENT: Final = "model"  # as transformers names the one component of an export


class KvcExporter(HfExporter):
    """Exports models of transformers to bundles."""

    export_format = FORMAT
    config_class = KvcConfig
    program_suffix = ".kvc"
    required_packages = ["torch"]  # noqa: RUF012  a list there, too

    def export_program(  # type: ignore[override]  # `config_class` is one
        self, model: nn.Module, sample_inputs: Mapping[str, object], config: KvcConfig
    ) -> tuple[Bundle, ExportMetadata]:
        """Compile the forward of a model; transformers calls this for `export`.

        Args:
            model: the model, which is left unchanged. It must stay so until the bundle
                is saved.
            sample_inputs: example arguments of its forward.
            config: the settings.

        Raises:
            UnsupportedModel: kvc cannot compile the model, or its bundle would not take
                an argument.
            CompileError: as `export_hf`.
        """
        if not _generates(model):
            return compile_forward(model, sample_inputs, config)
        for name, value in sample_inputs.items():
            if isinstance(value, Cache):
                raise _untaken(model, name, "tokens, and what a processor returns")
        bundle = with_cache(model, config)
        metadata = described_by(bundle, model)
        for name, value in sample_inputs.items():
            if isinstance(value, Tensor) and name not in metadata.kwargs:
                raise _untaken(model, name, listing(list(metadata.kwargs)))
        return bundle, metadata

    def export_for_generation(  # type: ignore[override]
        self,
        model: PreTrainedModel,
        sample_inputs: Mapping[str, object],
        config: KvcConfig | Mapping[str, object],
        *,
        generation_config: GenerationConfig | None = None,
        multi_token_decode: bool = False,
    ) -> ExportedModel:
        """Compile a model that generates text, with its cache: one component.

        Args:
            model: the model, as for `export_program`.
            sample_inputs: example arguments of `generate`, of which names are checked.
            config: the settings, or {"model": settings}.
            generation_config: the settings of `generate` to keep beside the bundle;
                None: those of the model. A size of caches in it is the size compiled
                for, unless `config` has one.
            multi_token_decode: without effect: `prefill` takes any number of tokens.

        Raises:
            UnsupportedModel: the model does not generate text, or as `export_program`.
            BadModelSetting: `config` has other components.
            CompileError: as `export_hf`.
        """
        checked = _config_of(config)
        if not _generates(model):
            reason = "it does not generate text; `export` takes its forward"
            raise UnsupportedModel(model=type(model).__name__, reason=reason)
        with _generating_as(model, generation_config):
            component = self._export_component(model, sample_inputs, checked)
        kept = generation_config or as_it_is(model.generation_config)
        return ExportedModel(
            {COMPONENT: component}, FORMAT, config=model.config, generation_config=kept
        )

    @classmethod
    def save_program(cls, program: Bundle | Program, path: Path) -> None:
        """Write a bundle, with its weights within.

        Raises:
            CompileError, FormatError, LoadError: as `Bundle.save`, `kvc.runtime.load`.
        """
        if isinstance(program, Bundle):
            program.save(path)
            return
        with BundleFile(program.path) as opened:
            beside = any(file.name for file in opened.program.files)
        if beside:
            join_bundle(program.path, path)
        else:
            shutil.copyfile(program.path, path)

    @classmethod
    def load_program(cls, path: Path) -> Program:
        """Open a bundle.

        Raises:
            ExecutionError, LoadError, FormatError: as `kvc.runtime.load`.
        """
        return load(path)


def with_cache(model: PreTrainedModel | Path, config: KvcConfig) -> Bundle:
    """Compile a model that generates text, or its folder.

    Raises:
        CompileError: as `export_hf`.
    """
    return export_hf(
        model,
        task="generate",
        recipe=config.recipe,
        cache=config.cache(),
        prefill_chunk=config.prefill_chunk,
        prefill_sizes=config.prefill_sizes,
        all_logits=config.all_logits,
        inputs_embeds=config.inputs_embeds,
        pictures=config.pictures,
        fit=config.fit,
    )


def described_by(bundle: Bundle, model: object = None) -> ExportMetadata:
    """Return what an export says of a bundle with a cache."""
    program = bundle.program
    return metadata_of(interface_of(program.methods, program.metadata), model)


def component_of(bundle: Bundle, config: KvcConfig) -> ExportedComponent:
    """Return a bundle as a component of an export."""
    metadata = described_by(bundle)
    metadata.export_config = json.loads(config.to_json_string())
    return ExportedComponent(bundle, metadata)


def _generates(model: object) -> TypeGuard[PreTrainedModel]:
    """Tell whether a model generates text, by its class."""
    if not isinstance(model, PreTrainedModel):
        return False
    try:
        return task_of(model, None) == "generate"
    except UnknownTask:
        return False


def _untaken(model: object, name: str, taken: str) -> UnsupportedModel:
    reason = (
        f"its bundle keeps caches and positions in sessions, and takes {taken}, but no "
        f"{name}"
    )
    return UnsupportedModel(model=type(model).__name__, reason=reason)


def _config_of(config: object) -> KvcConfig | dict[str, Any]:
    """Return the settings of the one component.

    Raises:
        BadModelSetting: there are others, or none.
    """
    if isinstance(config, Mapping):
        given = [one for one in config.values() if isinstance(one, KvcConfig)]
        if not given:
            return dict(config)
        if set(config) == {COMPONENT}:
            return given[0]
    elif isinstance(config, KvcConfig):
        return config
    raise BadModelSetting(
        place="export_for_generation",
        setting="config",
        expected=f"a KvcConfig, or {{{COMPONENT!r}: a KvcConfig}}: a bundle is one "
        "component",
        found=listing(list(config)) if isinstance(config, Mapping) else repr(config),
    )


@contextmanager
def _generating_as(
    model: PreTrainedModel, settings: GenerationConfig | None
) -> Iterator[None]:
    """Let a model have other generation settings in this context."""
    before = model.generation_config
    if settings is not None:
        model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before
