"""POST /v1/embeddings: the body, checked, and the object of its answer.

In: the fields of a body. Out: texts or tokens to embed; later, for their vectors, the
object with lists of numbers, or with float32 in base64.
"""

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvc.schema.frozen import frozen
from kvc.serving.models.embedding_model import Vectors
from kvc.serving.openai.completion_requests import Prompt, inputs_in
from kvc.serving.openai.fields import Fields
from kvc.serving.openai.settings import IGNORED

_MOST: Final = 2048
_SIDE: Final = 1 << 24
_KNOWN: Final = frozenset(
    {*IGNORED, "dimensions", "encoding_format", "input", "model", "prompt_name", "user"}
)


@frozen
class EmbeddingRequest:
    """A request for the vectors of texts.

    Attributes:
        inputs: the texts, or their tokens.
        prompt: the name of the bundle's text before each, None for the default.
        in_base64: whether the vectors are told in base64.
        length: the length that the vectors must have, None for any.
    """

    inputs: Sequence[Prompt]
    prompt: str | None
    in_base64: bool
    length: int | None


def embedding_request(fields: Fields) -> EmbeddingRequest:
    """Return what a body asks for.

    Raises:
        BadSetting: a field is impossible.
    """
    fields.check_known(_KNOWN)
    inputs = inputs_in(fields, "input", _MOST)
    form = fields.one_of("encoding_format", ("float", "base64"))
    length = fields.whole("dimensions", 1, _SIDE)
    prompt = fields.text("prompt_name")
    return EmbeddingRequest(inputs, prompt, form == "base64", length)


def embedding_object(
    fields: Fields, request: EmbeddingRequest, made: Vectors, model: str
) -> dict[str, object]:
    """Return the object that answers a request.

    Args:
        fields: the fields of the body, for messages.
        request: the request.
        made: the vectors.
        model: the name of the model.

    Raises:
        BadSetting: another length is asked for than that of the model's vectors.
    """
    length = made.rows.shape[1]
    if request.length not in (None, length):
        expected = f"{length}, the length of this model's vectors, or none"
        raise fields.bad("dimensions", expected)
    data = [
        {"object": "embedding", "index": index, "embedding": _told(row, request)}
        for index, row in enumerate(made.rows)
    ]
    usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _told(row: np.ndarray, request: EmbeddingRequest) -> object:
    if request.in_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()
