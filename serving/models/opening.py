"""`open_model`: what a loaded bundle can be served as.

In: a program. Out: a `TextModel`, an `EmbeddingModel` or a `SpeechModel`.
"""

from collections.abc import Mapping

from kvc.runtime.embedding.settings import task_of
from kvc.runtime.generation.encoding import find_encode
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.program import Program
from kvc.runtime.speech.spectrum import KEY
from kvc.schema.errors import BadSetting
from kvc.serving.models.catalog import Served
from kvc.serving.models.embedding_model import EmbeddingModel
from kvc.serving.models.speech_model import SpeechModel
from kvc.serving.models.text_model import TextModel
from kvc.serving.scheduling import Limits


def open_model(
    name: str,
    program: Program,
    limits: Limits,
    adapters: Mapping[str, float] | None = None,
) -> Served:
    """Return a model to serve.

    Args:
        name: its name.
        program: the loaded bundle, which the model closes in the end.
        limits: the limits of a scheduler.
        adapters: the names of loaded adapters -> their scales.

    Raises:
        BadSetting: the bundle is of a kind that cannot be served.
        UnknownName: the bundle has no methods that make texts.
        KvcError: as the classes of models.
    """
    task = task_of(program)
    if task == "embed":
        return EmbeddingModel(name, program)
    if KEY in program.metadata:
        return SpeechModel(name, program)
    if task or find_encode(program) is not None:
        found = f"one for --task {task}" if task else "one with an encoder"
        expected = "one that continues texts, embeds texts, or hears speech"
        raise BadSetting(name=f"the bundle {name}", expected=expected, found=found)
    find_roles(program, "prefill")
    find_roles(program, "decode")
    return TextModel(name, program, limits, adapters)
