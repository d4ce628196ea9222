"""`Request`, `Update`, `Ticket`: what goes into a scheduler, and what comes out.

In: the tokens of a prompt and settings. Out: updates, each with new text, for the
listener of the request. A listener is called by the scheduler's thread: it must return
at once, and must not raise.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation import GenerationSettings
from kvc.runtime.generation.log_probabilities import TokenLogprob
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import KvcError
from kvc.schema.frozen import frozen

Ending = Literal["stop", "stop_string", "length", "max_tokens", "cancelled", "failed"]


@frozen
class Request:
    """One prompt, which gets one answer.

    Attributes:
        prompt: the tokens of the prompt, at least one.
        settings: the settings of the answer.
        tokenizer: turns the answer into text; None if updates need no text.
        pictures: the preprocessed pictures of the prompt, in order.
        adapter: the name of a loaded adapter, None for none.
        scale: what multiplies what the adapter adds.
        client: whose request it is; waiting clients take turns.
        seconds: after how many seconds the answer ends as cancelled; None for never.
    """

    prompt: Sequence[int]
    settings: GenerationSettings
    tokenizer: Tokenizer | None = None
    pictures: Sequence[InParts] = ()
    adapter: str | None = None
    scale: float = 1.0
    client: str = ""
    seconds: float | None = None


@frozen
class Update:
    """What has become of a request since its last update.

    Attributes:
        text: new text, complete characters; "" if there is none yet.
        tokens: new tokens of the answer, without a stop token.
        logprobs: the log probabilities of these tokens, if the settings ask for them.
        ending: why the answer ended; None while it goes on. The last update has one.
        error: why the request failed, if the ending is "failed".
        reused: how many tokens of the prompt had been read before, for other requests;
            in the first update with a token, and in the last.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: Ending | None = None
    error: KvcError | None = None
    reused: int = 0


Listener = Callable[[Update], None]


class Ticket(Protocol):
    """A request that a scheduler has accepted."""

    def cancel(self) -> None:
        """End the request soon; its row becomes free. Without effect after its end.

        The listener gets a last update, with the ending "cancelled".
        """
