"""`Outcome`: what has become of a row, as a line of the output.

In: a row, and its answer or its error. Out: an object of JSON, in kvc's form or that of
OpenAI's batches.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.tokenizers import Tokenizer
from kvc.runtime.tokenizers.plain import Ids
from kvc.schema.errors import (
    BadSetting,
    CacheOverflow,
    ExecutionError,
    InputMismatch,
    KvcError,
    LoadError,
    UnknownName,
)
from kvc.schema.frozen import frozen
from kvc.serving.batch.rows import Row
from kvc.serving.models.token_texts import TokenTexts
from kvc.serving.openai.logprobs import (
    Offsets,
    chat_logprobs,
    completion_logprobs,
    finite,
)
from kvc.serving.scheduling.requests import Ending

_REASONS: Final[Mapping[Ending, str]] = {
    "stop": "stop",
    "stop_string": "stop",
    "max_tokens": "length",
    "length": "length",
    "cancelled": "cancelled",
    "failed": "error",
}
_OF_USER: Final = (BadSetting, CacheOverflow, InputMismatch, UnknownName)
_BAD_REQUEST, _FAILED = 400, 500


@frozen
class Outcome:
    """A line of the output.

    Attributes:
        number: the number of the row's line in the input.
        key: what tells whether that line is still the same.
        has_failed: whether the row has no answer.
        fields: the content of the line.
        tokens: how many tokens were made.
    """

    number: int
    key: int
    has_failed: bool
    fields: Mapping[str, object]
    tokens: int = 0

    @property
    def raw(self) -> bytes:
        """Return the line, JSON in UTF-8, without a line feed."""
        try:
            return json.dumps(self.fields, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:  # half of a character, from a tokenizer of bytes
            return json.dumps(self.fields).encode("ascii")


@frozen
class Answered:
    """A complete answer.

    Attributes:
        text: the text, None without a tokenizer.
        tokens: the tokens, without a stop token.
        ending: why it ended.
        prompt: the tokens of the prompt.
        reused: how many of them had been read for other rows.
        logprobs: the log probabilities of the tokens, None if they are not asked for.
    """

    text: str | None
    tokens: Sequence[int]
    ending: Ending
    prompt: Sequence[int]
    reused: int = 0
    logprobs: Sequence[TokenLogprob] | None = None


def outcome_of(row: Row, answer: Answered, tokenizer: Tokenizer | None) -> Outcome:
    """Return the line of a row that was answered.

    Args:
        row: the row.
        answer: its answer.
        tokenizer: spells the tokens of log probabilities, if there is one.
    """
    make = _fields if row.form == "kvc" else _openai_fields
    fields = make(row, answer, tokenizer)
    return Outcome(row.number, row.key, False, fields, len(answer.tokens))


def failure_of(row: Row, error: KvcError) -> Outcome:
    """Return the line of a row that has no answer."""
    told = {"code": error.code, "message": str(error)}
    if row.form == "kvc":
        fields: Mapping[str, object] = {"id": row.id, "error": told}
        return Outcome(row.number, row.key, True, fields)
    status = _BAD_REQUEST if _is_of_user(error) else _FAILED
    kind = "invalid_request_error" if status == _BAD_REQUEST else "server_error"
    body = {"error": {**told, "type": kind, "param": None}}
    fields = _openai_line(row, status, body, told)
    return Outcome(row.number, row.key, True, fields)


def _is_of_user(error: KvcError) -> bool:
    """Tell whether an error is of what the row says, not of what ran."""
    return isinstance(error, _OF_USER) or not isinstance(
        error, ExecutionError | LoadError
    )


def _fields(
    row: Row, answer: Answered, tokenizer: Tokenizer | None
) -> Mapping[str, object]:
    """Return the fields of kvc's form."""
    fields: dict[str, object] = {
        "id": row.id,
        "generated_text": answer.text,
        "finish_reason": _REASONS[answer.ending],
        "num_input_tokens": len(answer.prompt),
        "num_generated_tokens": len(answer.tokens),
    }
    if answer.text is None:
        fields["generated_tokens"] = list(answer.tokens)
    if answer.logprobs is not None:
        spelled = [_spelled(one, tokenizer) for one in answer.logprobs]
        fields["logprobs"] = spelled
    return fields


def _openai_line(
    row: Row, status: int, body: Mapping[str, object], error: object
) -> Mapping[str, object]:
    name = f"batch_req_{row.number}"
    response = {"status_code": status, "request_id": name, "body": body}
    return {"id": name, "custom_id": row.id, "response": response, "error": error}


def _openai_fields(
    row: Row, answer: Answered, tokenizer: Tokenizer | None
) -> Mapping[str, object]:
    """Return the fields of the form of OpenAI's batches."""
    is_chat = row.form == "chat"
    prompt, made = len(answer.prompt), len(answer.tokens)
    choice: dict[str, object] = {
        "index": 0,
        "logprobs": _openai_logprobs(answer, tokenizer, is_chat),
        "finish_reason": _REASONS[answer.ending],
    }
    if is_chat:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        choice["message"] = message
    else:
        choice["text"] = answer.text
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{row.number}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": row.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": answer.reused},
        },
    }
    return _openai_line(row, 200, body, None)


def _spelled(one: TokenLogprob, tokenizer: Tokenizer | None) -> Mapping[str, object]:
    """Return the log probability of a token, with its text if there is a tokenizer."""
    top = [_token(token, logprob, tokenizer) for token, logprob in one.top]
    return {**_token(one.token, one.logprob, tokenizer), "top": top}


def _token(
    token: int, logprob: float, tokenizer: Tokenizer | None
) -> dict[str, object]:
    told = {} if tokenizer is None else {"text": _text(token, tokenizer)}
    return {"token": token, **told, "logprob": finite(logprob)}


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return str(token)
    stream = tokenizer.stream()
    return stream.push(token) + stream.finish()


def _openai_logprobs(
    answer: Answered, tokenizer: Tokenizer | None, is_chat: bool
) -> Mapping[str, object] | None:
    """Return log probabilities in the form of a chat, or of a completion."""
    if answer.logprobs is None:
        return None
    texts = TokenTexts(Ids() if tokenizer is None else tokenizer)
    if is_chat:
        content = chat_logprobs(answer.logprobs, texts)
        return {"content": content, "refusal": None}
    offsets = Offsets(texts, answer.prompt, 0)
    return completion_logprobs(answer.logprobs, texts, offsets)
