"""Which tokens of a GGUF file end a text: those at which llama.cpp stops generating.

In: the metadata of a file. Out: token ids. A file names one end of a text, and newer
ones the end of a turn. llama.cpp takes other tokens of its vocabulary for ends as well,
by their spelling (`special_eog_ids` in src/llama-vocab.cpp), since
models make `<|endoftext|>` where the file names `<|im_end|>`, and the other way round.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.checkpoints.gguf_header import Metadata

EOS: Final = "tokenizer.ggml.eos_token_id"
_TOKENS: Final = "tokenizer.ggml.tokens"
# Entries that name a token: ends of a text, a turn and a message, and those of code
# that is filled in.
_NAMED: Final = tuple(
    f"tokenizer.ggml.{name}_token_id"
    for name in ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
)
_SPELLINGS: Final = frozenset(
    {
        "</s>", "<EOT>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<turn|>",
        "<|call|>", "<|calls|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>",
        "<|eom_id|>", "<|eot_id|>", "<|flush|>", "<|im_end|>", "<|return|>",
        "<|tool_response>", "[EOS]", "[EOT]", "_<EOT>",
    }
)  # fmt: skip
# Of each meaning, the first spelling of the vocabulary that is there counts.
_OF_CODE: Final = (
    ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ("<|file_sep|>",),
)
# Spelling -> sets of others, beside which it ends only a part of an answer.
_INNER: Final = {
    "<|end|>": (
        {"<|return|>", "<|call|>"},
        {"<|return|>", "<|calls|>"},
        {"<|flush|>", "<|call|>"},
        {"<|flush|>", "<|calls|>"},
    ),
    "</s>": ({"<|tool_response>"},),
}


def end_tokens(metadata: Mapping[str, Metadata]) -> list[int]:
    """Return the tokens at which llama.cpp stops, the named end of texts first.

    Args:
        metadata: the metadata of a GGUF file.
    """
    listed = metadata.get(_TOKENS)
    spelled = listed if isinstance(listed, list) else []
    at = {text: token for token, text in enumerate(spelled) if isinstance(text, str)}
    ends = [at[text] for text in sorted(_SPELLINGS & at.keys() - _inner(at))]
    for spellings in _OF_CODE:
        ends += [at[text] for text in spellings if text in at][:1]
    named = [metadata.get(name) for name in (EOS, *_NAMED)]
    known = [one for one in named if type(one) is int and 0 <= one < len(spelled)]
    first = [one for one in named[:1] if type(one) is int]  # also without a vocabulary
    return list(dict.fromkeys([*first, *known, *sorted(ends)]))


def _inner(at: Mapping[str, int]) -> set[str]:
    """Return the spellings that only end a part of an answer in a vocabulary."""
    return {
        text
        for text, sets in _INNER.items()
        if any(others <= at.keys() for others in sets)
    }
