"""A tiny model of transformers and its export to kvc, side by side."""

from dataclasses import dataclass
from pathlib import Path

import torch
from hf_folders import tiny_llama
from transformers import PreTrainedModel
from transformers.exporters import AutoHfExporter, ExportedModel

from kvc.transformers import KvcConfig, KvcForCausalLM


@dataclass(frozen=True)
class Door:
    """A model, the folder of its export, and the class that runs the export."""

    model: PreTrainedModel
    folder: Path
    exported: ExportedModel

    @property
    def kvc(self):
        return KvcForCausalLM(self.exported)


def tokens(rows=1, count=7, seed=1):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(3, 64, (rows, count), generator=made)


def model_of(**changes):
    model = tiny_llama(num_hidden_layers=1, **changes)
    model.generation_config.pad_token_id = 0
    return model


def exported_to(folder, model, inputs=None, **settings):
    config = KvcConfig(**{"recipe": "cpu_fp32", **settings})
    exporter = AutoHfExporter.from_config(config)
    inputs = {"input_ids": tokens()} if inputs is None else inputs
    exporter.export_for_generation(model, inputs, config).save_pretrained(folder)
    return ExportedModel.from_pretrained(folder)
