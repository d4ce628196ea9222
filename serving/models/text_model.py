"""`TextModel`: a bundle that continues texts and chats, with its scheduler.

In: prompts and settings. Out: requests for the scheduler, which runs in a thread of its
own. Everything here may be called from any thread.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property

from kvc.runtime.generation.settings import (
    Arguments,
    GenerationSettings,
    settings_and_ignored,
)
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.schema.closing import Closing
from kvc.schema.errors import BadSetting, MissingPackage
from kvc.serving.models.chat_prompts import Prompts
from kvc.serving.models.token_texts import LONGEST, TokenTexts
from kvc.serving.scheduling import (
    Limits,
    Listener,
    Request,
    Scheduler,
    Ticket,
    Update,
)


class TextModel(Closing):
    """A model that answers with text.

    Attributes:
        name: its name.
        program: the loaded bundle.
        tokenizer: the tokenizer of the bundle.
        prompts: makes the prompts of chats.
        scheduler: answers requests.
        reads: what it reads: "text", and perhaps "image".
        adapters: the names of the adapters that requests may ask for -> their scales.
    """

    does = "answers with text"

    def __init__(
        self,
        name: str,
        program: Program,
        limits: Limits,
        adapters: Mapping[str, float] | None = None,
    ) -> None:
        """Start the scheduler of a program.

        Raises:
            KvcError: as `tokenizer_of`, `chat_template_of` and `Scheduler`.
        """
        self.name, self.program = name, program
        self.adapters = dict(adapters or {})
        found = tokenizer_of(program)
        if isinstance(found, JsonTokenizer):
            found = found.letting_run()
        self.tokenizer: Tokenizer = found
        self.prompts = Prompts(program, self.tokenizer)
        self.scheduler = Scheduler(program, limits)
        self._metadata = dict(program.metadata)
        pictures = ("image",) if self.prompts.reads_pictures else ()
        self.reads: tuple[str, ...] = ("text", *pictures)

    @cached_property
    def token_texts(self) -> TokenTexts:
        """Return the texts of single tokens, for log probabilities."""
        return TokenTexts(self.tokenizer)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Return the token that ends an answer in a chat, () if none is named."""
        template = self.prompts.template
        return () if template is None else template.end_tokens(self.tokenizer)

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that the model shall continue.

        Raises:
            BadSetting: the text has no tokens, or far too many.
        """
        self.check_length(len(text))
        tokens = list(self.tokenizer.encode(text))  # bytes are no array of numbers
        if not tokens:
            expected = "a text of at least one token"
            raise BadSetting(name="prompt", expected=expected, found="none")
        return tokens

    def check_length(self, characters: int) -> None:
        """Check that a prompt may fit, before it is encoded.

        Raises:
            BadSetting: it has more characters than all tokens could have.
        """
        capacity = self.scheduler.capacity
        most = None if capacity is None else capacity * LONGEST
        if most is not None and characters > most:
            expected = f"at most {most} characters, for {capacity} tokens"
            raise BadSetting(name="prompt", expected=expected, found=characters)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        stream = self.tokenizer.stream()
        return "".join(map(stream.push, tokens)) + stream.finish()

    def settings(self, given: Arguments, in_chat: bool) -> GenerationSettings:
        """Return the settings of the bundle, overridden by those of a request.

        Args:
            given: the settings of the request.
            in_chat: whether the token that ends an answer in a chat is a stop token.

        Raises:
            BadSetting: a setting is impossible.
        """
        settings, _ = settings_and_ignored(self._metadata, given)
        if not in_chat:
            return settings
        stops = dict.fromkeys((*settings.stop_tokens, *self.ends))
        told: Arguments = {**given, "stop_tokens": tuple(stops)}
        return settings_and_ignored(self._metadata, told)[0]

    def warm_up(self) -> None:
        """Answer with a token in a form, so that no later request waits for beginnings.

        What llguidance makes of a vocabulary takes a second, in which no other thread
        of Python runs.
        """
        given: Arguments = {"max_tokens": 1, "temperature": 0.0}
        try:
            self._run_once({**given, "regex": "."})
        except (BadSetting, MissingPackage):  # there are no forms of its tokens
            self._run_once(given)

    def _run_once(self, given: Arguments) -> None:
        """Answer a prompt, and drop the answer."""
        ended = threading.Event()

        def listen(update: Update) -> None:
            if update.ending is not None:
                ended.set()

        settings = self.settings(given, in_chat=True)
        self.submit(Request(self.encode("1"), settings), listen)
        ended.wait()

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Hand a request to the scheduler.

        Raises:
            KvcError: as `Scheduler.submit`.
        """
        return self.scheduler.submit(request, listener)

    def close(self, seconds: float = 0.0) -> None:
        """End the scheduler, then close the program.

        Args:
            seconds: how long the answers that run may go on.
        """
        self.scheduler.close(seconds)
        self.program.close()
