"""`Prompts`: the messages of a chat become the tokens of a prompt.

    messages, pictures, tools --Script--> tokens, and how the answer is read

In: messages as chat templates take them, pictures, tools. Out: a `ChatPrompt`. Names of
special tokens that stand in messages are plain text, since strangers write them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kvc.runtime.generation.conversation_reply import form_and_problem, showing
from kvc.runtime.generation.conversation_script import Script, Shown, Turn
from kvc.runtime.generation.conversation_start import check_read
from kvc.runtime.generation.picture_places import PicturePlaces, places_of
from kvc.runtime.generation.preparing import prepared
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import (
    ChatTemplate,
    Message,
    Tokenizer,
    chat_template_of,
)
from kvc.runtime.tokenizers.reply_forms import Form
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from PIL.Image import Image

_IMAGE: Final = "image"
_EFFORT: Final = "reasoning_effort"


@frozen
class Chat:
    """A chat that waits for its next answer.

    Attributes:
        messages: the messages; a content is a text, or a list of parts, {"type":
            "text", "text": ...} and {"type": "image"}.
        pictures: the pictures of the parts, in order.
        tools: the JSON schemas of the tools that the model is told of, None for none.
        arguments: more variables of the chat template.
        effort: the variable `reasoning_effort`, None to leave it out.
    """

    messages: Sequence[Message]
    pictures: "Sequence[Image]" = ()
    tools: Sequence[Mapping[str, object]] | None = None
    arguments: Mapping[str, object] | None = None
    effort: str | None = None

    @property
    def characters(self) -> int:
        """Return how many characters the texts have that a template may write."""
        return sum(map(_characters, (self.messages, self.tools, self.arguments)))


@frozen
class ChatPrompt:
    """A prompt, and what its answer is read with.

    Attributes:
        script: what has made the prompt.
        turn: the tokens, the text and the pictures.
        form: the form of the answer, None for text alone.
        tokenizer: the tokenizer of the answer, whose text has the marks of the form.
    """

    script: Script
    turn: Turn
    form: Form | None
    tokenizer: Tokenizer


class Prompts:
    """Makes the prompts of one model; safe to use from many threads."""

    def __init__(self, program: Program, tokenizer: Tokenizer) -> None:
        """Read the chat template of a bundle.

        Raises:
            KvcError: as `chat_template_of` and `places_of`.
        """
        self._program, self._tokenizer = program, tokenizer
        self.template: ChatTemplate | None = chat_template_of(program)
        self._places: PicturePlaces | None = places_of(program)

    @property
    def reads_pictures(self) -> bool:
        """Tell whether the model reads pictures."""
        return self._places is not None

    def chat(self, chat: Chat) -> ChatPrompt:
        """Return the prompt of a chat.

        Raises:
            BadSetting: the bundle has no chat template; a message, a tool or an
                argument is impossible; the model reads no pictures; tools have no
                effect.
            BadChatTemplate, TemplateLimit: the template refuses the messages.
            BadPicture, MissingPackage: a picture cannot be read.
        """
        template = self.template
        if template is None:
            expected = "a prompt for /v1/completions: the model has no chat template"
            found = f"{len(chat.messages)} of them"
            raise BadSetting(name="messages", expected=expected, found=found)
        text = template.renderer_for(chat.tools).text
        script = Script(
            self._tokenizer,
            template,
            self._places,
            chat.tools,
            self._arguments(chat, text),
            special_tokens="text",
        )
        form, problem = form_and_problem(script)
        if problem and chat.tools:
            expected = f"none: {problem}"
            raise BadSetting(name="tools", expected=expected, found=len(chat.tools))
        pictures = prepared(self._program, self._places, chat.pictures)
        shown = [Shown(-number, one) for number, one in enumerate(pictures, 1)]
        said = [_message(one, script.in_parts, text) for one in chat.messages]
        turn = script.turn((), said, shown)
        check_read(said, turn.text)
        return ChatPrompt(script, turn, form, showing(self._tokenizer, form))

    def _arguments(self, chat: Chat, text: str) -> Mapping[str, object]:
        """Return the further variables of the template.

        Raises:
            BadSetting: the template does not read how much the model shall reason.
        """
        given = chat.arguments or {}
        if chat.effort is None:
            return given
        if _EFFORT not in text:
            expected = f"none: the model's chat template reads no {_EFFORT}"
            raise BadSetting(name=_EFFORT, expected=expected, found=repr(chat.effort))
        return {_EFFORT: chat.effort, **given}


def _characters(value: object) -> int:
    """Return how many characters the texts in a value of JSON have."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _characters(one) for name, one in value.items())
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _message(message: Message, in_parts: bool, template: str) -> Message:
    """Return a message as the template of a model takes it."""
    made = dict(message)
    if made.get("role") == "developer" and "developer" not in template:
        made["role"] = "system"
    content = made.get("content")
    if isinstance(content, list):
        if not in_parts or not any(part.get("type") == _IMAGE for part in content):
            texts = [part["text"] for part in content if part.get("type") == "text"]
            made["content"] = "\n".join(texts)
    elif content is None:
        made["content"] = ""
    if in_parts and isinstance(made["content"], str):
        made["content"] = [{"type": "text", "text": made["content"]}]
    return made
