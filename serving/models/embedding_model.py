"""`EmbeddingModel`: a bundle that turns texts into vectors.

In: texts, or their tokens. Out: vectors, and how many tokens they took. A call takes
the processor for as long as it runs: whoever calls does so in a thread of its own.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.calls.entries import vocabulary_of
from kvc.runtime.calls.inputs import TokenInput
from kvc.runtime.embedding.rows import (
    Floats,
    Text,
    encoded_texts,
    most_tokens,
    run_rows,
)
from kvc.runtime.embedding.settings import text_settings
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import tokenizer_of
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.serving.models.token_texts import LONGEST


@frozen
class Vectors:
    """The vectors of some texts.

    Attributes:
        rows: the vectors, float32 [texts, n].
        tokens: how many tokens the texts have.
    """

    rows: Floats
    tokens: int


class EmbeddingModel(Closing):
    """A model that turns texts into vectors.

    Attributes:
        name: its name.
        program: the loaded bundle.
    """

    does = "embeds texts"
    reads = ("text",)

    def __init__(self, name: str, program: Program) -> None:
        """Read the settings of a bundle.

        Raises:
            KvcError: as `text_settings` and `tokenizer_of`.
        """
        self.name, self.program = name, program
        self._settings = text_settings(program, "embed")
        method = program.methods[self._settings.method]
        vocabulary = vocabulary_of(method, method.graph.inputs[0])
        self._token_input = TokenInput(method.name, method.input_names[0], vocabulary)
        found = tokenizer_of(program)
        if isinstance(found, JsonTokenizer):
            found = found.letting_run()
        self._tokenizer = found

    def embed(self, texts: Sequence[Text], prompt: str | None = None) -> Vectors:
        """Return the vectors of texts.

        Args:
            texts: texts, or their tokens; at least one.
            prompt: the name of the bundle's text that is put before each text; None for
                its default.

        Raises:
            BadSetting: a text has more characters than its tokens could have.
            InputMismatch: a token is not in the vocabulary.
            BadSetting, TextTooLong, ExecutionError: as `kvc.runtime.embed`.
        """
        settings = self._settings
        for text in texts:
            if isinstance(text, str):
                self._check_length(len(text))
            else:
                self._token_input.check(np.array(text, np.int64))
        rows = encoded_texts(self.program, settings, self._tokenizer, texts, prompt)
        made = run_rows(self.program, settings, rows)
        return Vectors(made, sum(map(len, rows)))

    def _check_length(self, characters: int) -> None:
        """Check that a text may fit, before it is encoded.

        Raises:
            BadSetting: it has more characters than all tokens could have.
        """
        tokens = most_tokens(self.program, self._settings)
        if characters > tokens * LONGEST:
            expected = f"at most {tokens * LONGEST} characters, for {tokens} tokens"
            raise BadSetting(name="input", expected=expected, found=characters)

    def close(self, seconds: float = 0.0) -> None:
        """Close the program."""
        self.program.close()
