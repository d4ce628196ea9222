"""Open a GGUF file as a model: what `open_folder` makes of a folder of transformers.

In: the path of a .gguf file, or of a folder with one and without config.json. Out: a
`ModelFolder`, whose parameters have the locations of their values in the file.
"""

import os
from pathlib import Path
from typing import Final

from kvc.compiler.checkpoints.gguf_file import GgufCheckpoint, gguf_files
from kvc.compiler.emit.files import TOKENIZER, check_tokenizer
from kvc.compiler.hugging_face.folder import CONFIG, ModelFolder, build_model
from kvc.compiler.hugging_face.reading.gguf import (
    gguf_tensors,
    read_config,
    read_tokenizer,
)
from kvc.compiler.hugging_face.reading.gguf_ends import end_tokens
from kvc.compiler.hugging_face.reading.tasks import Task, find_task
from kvc.compiler.hugging_face.reading.weights import load_matched
from kvc.schema.checkpoints.gguf_header import SUFFIX

_TOKENS: Final = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}


def holds_gguf(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a .gguf file, or a folder whose model is one."""
    place = Path(path)
    if place.is_dir():
        return not (place / CONFIG).exists() and bool(gguf_files(place))
    return place.suffix == SUFFIX


def open_gguf(path: str | os.PathLike[str], asked: Task | None = None) -> ModelFolder:
    """Open a GGUF file; only its header is read.

    Args:
        path: path of the file, or of its folder.
        asked: the requested task; None: as the architecture says.

    Raises:
        MissingPackage: the gguf package is not installed.
        BadCheckpoint: the file is damaged; the error lists all problems.
        CheckpointError: there is no such file, or there are several.
        UnsupportedModel: transformers has no such model, or does not read it from GGUF.
        BadModelFolder: the metadata makes no model or tokenizer.
        CheckpointMismatch: tensors do not fit the model.
        TokenizerTooLarge: the tokenizer has tokens that the model does not have.
    """
    checkpoint = GgufCheckpoint(path)
    config = read_config(checkpoint)
    task = asked or find_task(config, checkpoint.path)
    model = build_model(config, Path(checkpoint.path), task)
    load_matched(model, checkpoint.path, gguf_tensors(model, checkpoint))
    files = read_tokenizer(checkpoint)
    if TOKENIZER in files:
        check_tokenizer(files[TOKENIZER], config.get_text_config().vocab_size)
    generation: dict[str, object] = {
        name: checkpoint.metadata[key]
        for key, name in _TOKENS.items()
        if key in checkpoint.metadata
    }
    if ends := end_tokens(checkpoint.metadata):
        generation["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    return ModelFolder(model, generation, files, task=task)
