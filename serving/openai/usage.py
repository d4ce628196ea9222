"""`Usage`: how many tokens a request has taken, as OpenAI tells it."""

from kvc.serving.scheduling import Update


class Usage:
    """Counts the tokens of a prompt and of its answers.

    Attributes:
        prompt: the number of tokens of the prompt, or prompts.
        answered: the number of tokens of the answers so far.
        reused: how many tokens of the prompt did not have to be read.
    """

    def __init__(self, prompt: int) -> None:
        """Begin with the tokens of the prompt."""
        self.prompt, self.answered, self.reused = prompt, 0, 0

    def add(self, index: int, update: Update) -> None:
        """Count what an update of the answer `index` tells."""
        self.answered += len(update.tokens)
        if update.reused and index == 0:
            # Later answers to the same prompt reuse what the first has read.
            self.reused = update.reused

    @property
    def text(self) -> str:
        """Return the numbers in words, for a log."""
        reused = f" ({self.reused} reused)" if self.reused else ""
        return f"{self.prompt}{reused} + {self.answered} tokens"

    @property
    def told(self) -> dict[str, object]:
        """Return the numbers as a JSON object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answered,
            "total_tokens": self.prompt + self.answered,
            "prompt_tokens_details": {"cached_tokens": min(self.reused, self.prompt)},
        }
