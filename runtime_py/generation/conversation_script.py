"""`Script`: the tokens of a conversation, and what stands in them for pictures.

    messages --chat template--> text --pictures' tokens--> text --tokenizer--> tokens

In: messages, pictures, and what the template is given beside them. Out: tokens, and
tokens with a mark for each picture in place of its image tokens, for comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final, cast

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation.conversation_start import tool_message
from kvc.runtime.generation.picture_places import PicturePlaces
from kvc.runtime.tokenizers import ChatTemplate, Message, Tokenizer, Tool
from kvc.runtime.tokenizers.spelled_tokens import Spelled, encode, names_in, spelled
from kvc.runtime.tokenizers.template_arguments import checked_arguments, schemas_of
from kvc.schema.errors import BadChatTemplate, BadSetting, TemplateLimit
from kvc.schema.frozen import frozen

_IMAGE: Final = {"type": "image"}  # a picture in the message format of templates


@frozen
class Shown:
    """A picture of a conversation.

    Attributes:
        mark: a unique negative number that replaces the picture's tokens in
            comparisons.
        picture: the preprocessed picture.
    """

    mark: int
    picture: InParts


@frozen
class Turn:
    """The messages before an answer, and the tokens up to the answer.

    Attributes:
        said: the new messages.
        text: the text of the whole conversation, up to the answer; "" without a
            template.
        tokens: the tokens of the whole conversation, up to the answer.
        marked: `tokens` with the marks of pictures in place of the pictures' image
            tokens.
        shown: the pictures of all messages that are read.
        dropped: how many messages after the system message are left out.
    """

    said: Sequence[Message]
    text: str
    tokens: Sequence[int]
    marked: Sequence[int]
    shown: Sequence[Shown]
    dropped: int = 0


class Script:
    """Turns messages into tokens.

    Attributes:
        tokenizer: the tokenizer of the bundle.
        template: the chat template, None if the conversation is one continued text.
        places: how a prompt stands for pictures, None if the model reads none.
        tools: the JSON schemas of the tools that the model may call, None for none.
        arguments: more variables of the template.
        special_tokens: what names of special tokens in messages become.
        in_parts: whether messages are lists of parts, with pictures.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        places: PicturePlaces | None,
        tools: Sequence[Tool] | None = None,
        arguments: Mapping[str, object] | None = None,
        special_tokens: str = "tokens",
    ) -> None:
        """Check what the template is given.

        Args:
            tokenizer: the tokenizer of the bundle.
            template: the chat template, None for one continued text.
            places: how a prompt stands for pictures, None if the model reads none.
            tools: JSON schemas of tools, or functions.
            arguments: more variables of the template.
            special_tokens: "tokens", or "text" to encode names of special tokens in
                messages, tools and arguments as plain text.

        Raises:
            BadSetting: a tool, an argument or `special_tokens` is impossible, or there
                is no template.
        """
        self.tokenizer, self.template, self.places = tokenizer, template, places
        self.tools, self.arguments = schemas_of(tools), checked_arguments(arguments)
        if template is None and (self.tools is not None or self.arguments):
            name = "template_arguments" if self.tools is None else "tools"
            expected = "none, as there is no chat template that could tell the model"
            found = sorted(self.arguments) or len(self.tools or ())
            raise BadSetting(name=name, expected=expected, found=found)
        self.special_tokens = special_tokens
        self._names = self._find_names()
        self.in_parts = self._takes_parts()

    def _find_names(self) -> tuple[str, ...]:
        """Return the names that are plain text where the user writes them."""
        if self.special_tokens == "tokens":
            return ()
        if self.special_tokens != "text" or self.template is None:
            expected = "'tokens', or with a chat template 'text'"
            found = repr(self.special_tokens)
            raise BadSetting(name="special_tokens", expected=expected, found=found)
        template = self.template.renderer_for(self.tools).text
        return names_in(self.tokenizer, template)

    def _takes_parts(self) -> bool:
        """Tell whether the template takes messages as lists of parts, with pictures."""
        placeholder = None if self.places is None else self.places.placeholder
        if self.template is None or placeholder is None:
            return False
        parts = [_IMAGE, {"type": "text", "text": "a"}]
        try:
            text = self.template.render([{"role": "user", "content": parts}])
        except BadChatTemplate:  # the template takes only texts
            return False
        return text.count(placeholder) == 1

    def message(self, role: str, text: str, pictures: int = 0) -> Message:
        """Return a message of some pictures and a text."""
        if not self.in_parts:
            return {"role": role, "content": text}
        parts = [*[_IMAGE] * pictures, {"type": "text", "text": text}]
        return {"role": role, "content": parts}

    def pictures_in(self, message: Message) -> int:
        """Return how many pictures a message has."""
        if self.places is None:
            return 0
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        pictures = [part for part in parts if part.get("type") == "image"]
        texts = (str(part.get("text") or "") for part in parts)
        return len(pictures) + sum(map(self.places.count_in, texts))

    def rendered(self, messages: Sequence[Message]) -> Spelled:
        """Return the text of messages, and what begins an answer.

        Raises:
            BadChatTemplate, TemplateLimit, BadSetting: as `ChatTemplate.render` and
                `spelled`.
        """
        given = {**self.arguments, "messages": messages, "tools": self.tools}
        template = self.template
        assert template is not None

        def render(given: Mapping[str, object]) -> str:
            return template.render(**cast("dict[str, Any]", given))  # which checks them

        return spelled(given, render, self._names)

    def turn(
        self, before: Sequence[Message], said: Sequence[Message], shown: Sequence[Shown]
    ) -> Turn:
        """Return the turn of new messages.

        Args:
            before: the earlier messages.
            said: the new messages.
            shown: all pictures of the conversation.

        Raises:
            BadChatTemplate, TemplateLimit, BadSetting: as `ChatTemplate.render`; or the
                numbers of placeholders and pictures differ.
        """
        made = self.rendered([*before, *said])
        made = replace(made, text=self._expanded(made.text, shown))
        tokens = encode(self.tokenizer, made)
        return Turn(said, made.whole, tokens, self._marked(tokens, shown), shown)

    def next_turn(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return the tokens of a turn after messages, to see what of them it keeps.

        The last message is the model's answer; a result follows a call, else the user's
        message. Empty if the template refuses such a turn.
        """
        last = messages[-1] if messages else {}
        said = tool_message("1", "a", "a", last)
        if not last.get("tool_calls"):
            said = self.message("user", "1")  # a text that any tokenizer takes
        try:
            return encode(self.tokenizer, self.rendered([*messages, said]))
        except (BadChatTemplate, BadSetting, TemplateLimit):
            return ()

    def shared_by_next(self, turn: Turn, before: Sequence[Message]) -> int:
        """Return how many tokens of a turn the next turn is expected to share.

        Args:
            turn: the turn, which has no answer yet.
            before: the messages before the turn.
        """
        answer = self.message("assistant", "1")
        expected = self.next_turn([*before, *turn.said, answer])
        pairs = zip(turn.tokens, expected, strict=False)
        same = takewhile(lambda pair: pair[0] == pair[1], pairs)
        return sum(1 for _ in same)

    def continued(
        self, before: Sequence[int], text: str, shown: Sequence[Shown], new: int
    ) -> Turn:
        """Return the turn of a text that continues others, without a template.

        Args:
            before: the tokens so far.
            text: the new text.
            shown: all pictures of the text.
            new: the number of pictures of the new text.
        """
        more = self._expanded(text, shown[len(shown) - new :])
        tokens = [*before, *self.tokenizer.encode(more, special=not before)]
        return Turn((), "", tokens, self._marked(tokens, shown), shown)

    def _expanded(self, text: str, shown: Sequence[Shown]) -> str:
        """Return a text in which each picture's placeholder has become image tokens."""
        if self.places is None:
            return text
        return self.places.in_text(text, [one.picture.grid for one in shown])

    def without_first_space(self, piece: str, tokens: Sequence[int]) -> str:
        """Return the first piece of an answer without the space that the prompt causes.

        Some tokenizers decode a token that follows other tokens with a space before it.
        The space is dropped if the text of the answer's tokens alone would not begin
        with one.
        """
        if self.template is None or not piece.startswith(" "):
            return piece
        stream = self.tokenizer.stream()
        alone = "".join(map(stream.push, tokens)) + stream.finish()
        return piece if alone.startswith(" ") else piece[1:]

    def _marked(self, tokens: Sequence[int], shown: Sequence[Shown]) -> list[int]:
        """Return tokens with a picture's mark in place of each of its image tokens."""
        if self.places is None:
            return list(tokens)
        places = self.places
        marks = iter(
            mark
            for mark, count in (
                (one.mark, places.count_of(one.picture.grid)) for one in shown
            )
            for _ in range(count)
        )
        return [next(marks, t) if t == places.token else t for t in tokens]
