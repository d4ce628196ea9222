"""Hostile files that are read as texts: tokenizers, chat templates, recipes.

In: the number of a case. Out: a `Verdict`. A file that is accepted is used. A tokenizer
encodes texts and decodes tokens piece by piece, which must give what its library
decodes at once. A template renders conversations twice, with equal results. No error
but `KvcError` may be raised.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hostile_cases import Verdict, escaped, refused
from program_mutations import ODD, Mutator, mutate_bytes, other_text
from small_tokenizers import byte_fallback, byte_level
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from kvc.recipes import load_recipes
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
from kvc.schema.errors import KvcError
from kvc.schema.interrupts import is_failure

ROOT = Path(__file__).parents[2]
TEXTS = ("", "a cab is bad", "  Ab\u00e9\u0301 \u4e2d\x00 [B] abcabc\n", "dab " * 40)
_MOST_ID = 500


class Json:
    """Hostile variants of the content of a JSON file."""

    def __init__(self, content: object) -> None:
        self._mutator: Mutator[object] = Mutator(_frozen(content), ODD)
        self._text = json.dumps(content)
        self.unchanged = self._text.encode()

    def text(self, dice: random.Random) -> bytes:
        chance = dice.random()
        if chance < 0.05:
            return mutate_bytes(self.unchanged, dice)
        if chance < 0.1:
            return other_text(self._text, dice).encode(errors="replace")
        return json.dumps(self._mutator.mutate(dice)).encode()


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Source:
    """A stand-in for a program: the files and metadata that its bundle has."""

    files: Mapping[str, bytes]
    metadata: Mapping[str, str] = field(default_factory=dict)


class Tokenizers:
    def __init__(self, name: str, make: Callable[[], Tokenizer]) -> None:
        self.name = name
        self._json = Json(json.loads(make().to_str()))

    def content(self, number: int) -> bytes:
        """Return the bytes of a case's tokenizer file."""
        return self._json.text(random.Random(f"{self.name} {number}"))

    def try_case(self, number: int, folder: Path) -> Verdict:
        raw, dice = self.content(number), random.Random(number)
        told = {"tokenizer": '"tokenizer.json"'}
        try:
            made = tokenizer_of(Source({"tokenizer.json": raw}, told))
            tokens = [list(made.encode(text)) for text in TEXTS]
            ends = (20, _MOST_ID)
            tokens.append([dice.randrange(-2, dice.choice(ends)) for _ in range(30)])
            texts = [_by_pieces(made, some) for some in tokens]
        except KvcError as error:
            return refused(error, "a tokenizer")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return escaped(error)
        for some, text in zip(tokens, texts, strict=True):
            whole = _at_once(made, some)
            if whole is not None and whole != text:
                return Verdict("differs", f"{some}: {text!r} | {whole!r}")
        return Verdict("same")


def _by_pieces(tokenizer: object, tokens: Sequence[int]) -> str:
    stream = tokenizer.stream()
    return "".join([*map(stream.push, tokens), stream.finish()])


def _at_once(tokenizer: object, tokens: Sequence[int]) -> str | None:
    """Return the text that the library decodes of all tokens; None if it fails.

    The same library object decodes piece by piece: where two tokens have one number,
    another object may choose the other token.
    """
    library: Tokenizer = tokenizer._library  # type: ignore[attr-defined]  # of its own
    try:
        return library.decode([token for token in tokens if token >= 0])
    except BaseException as error:
        if not is_failure(error):
            raise
        return None


def _words() -> Tokenizer:
    """Return a tokenizer of word pieces, as BERT has.

    Its vocabulary is given: training would choose others each time.
    """
    parts = ["[UNK]", "[CLS]", "[SEP]"]
    parts += ["a", "c", "ba", "##b", "##ad", "##s", "is", "##d"]
    numbers = {one: n for n, one in enumerate(parts)}
    made = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(parts[:3])
    return made


def _unigrams() -> Tokenizer:
    """Return a tokenizer of pieces with probabilities, as Llama has.

    Text for which there is no piece is encoded as bytes.
    """
    pieces = [("<unk>", 0.0), ("\u2581", -2.0), ("a", -3.0), ("b", -3.0)]
    pieces += [("\u2581cab", -1.5)]
    pieces += [(f"<0x{n:02X}>", -9.0) for n in (0x64, 0x69, 0x73, 0xE4, 0xB8, 0xAD, 0)]
    made = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces, strip = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    joined = [spaces, decoders.ByteFallback(), decoders.Fuse(), strip]
    made.decoder = decoders.Sequence(joined)
    return made


TEMPLATES = {
    "template of turns": (
        "{%- set ns = namespace(found=false) -%}{%- for message in messages -%}\n"
        "{%- if message.role == 'system' and not loop.first -%}"
        "{{ raise_exception('no system here') }}{%- endif -%}\n"
        "{{ '<|' + message['role'] + '|>' + (message.content | trim) + eos_token }}"
        "{%- set ns.found = true -%}{%- endfor -%}"
        "{%- if add_generation_prompt and ns.found -%}{{ '<|model|>' }}{%- endif -%}"
    ),
    "template of tools": (
        "{% macro told(one, deep=0) %}{% if one is mapping %}{% for key, value in "
        "one.items() %}{{ key }}={{ told(value, deep + 1) }};{% endfor %}{% else %}"
        "{{ one | tojson(indent=2) }}{% endif %}{% endmacro %}{{ bos_token }}"
        "{% for m in messages[1:] if m.content is string %}{{ loop.index0 }}:"
        "{{ told(m)[:80] | replace('a', 'bb') | upper }}{% else %}none{% endfor %}"
        "{% for n in range(3) %}{{ '%02d' % n }}{{ [n, 'x'] | join(',') }}{% endfor %}"
    ),
}
HOSTILE = (
    "range(10 ** 9)", "'x' * 10 ** 9", "'x' * 10 ** 12", "2 ** 10 ** 8", "messages",
    "{% for a in range(99999) %}", "{% for b in range(99999) %}", "{% endfor %}",
    "{% set messages = [messages, messages] %}", "''.__class__.__mro__", "loop",
    "'%99999999d' % 1", "| pprint", "| batch(0)", "| list", "{% include 'x' %}",
    "{% import 'os' as os %}", "cycler", "lipsum(n=9999)", "joiner()", "self", "{#",
    "told(messages)", "{{ caller() }}", "{% raw %}", "none", "-1", "{% break %}", "()",
)  # fmt: skip
_ADDRESS = re.compile("0x", re.IGNORECASE)  # of an object, in its text
_TOKENS = re.compile(r"\{%-?|-?%\}|\{\{|\}\}|\w+|\s+|.", re.DOTALL)
SAID = (
    [{"role": "user", "content": "a cab"}, {"role": "assistant", "content": "is bad"}],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "image"}]},
    ],
)


class Templates:
    def __init__(self, name: str) -> None:
        self.name = name
        self._tokens = _TOKENS.findall(TEMPLATES[name])

    def content(self, number: int) -> bytes:
        """Return the bytes of a case's template."""
        dice, tokens = random.Random(f"{self.name} {number}"), [*self._tokens]
        for _ in range(dice.choice((1, 1, 2, 4))):
            start, end = sorted(dice.randrange(len(tokens) + 1) for _ in range(2))
            end = min(end, start + dice.choice((0, 1, 1, 8)))
            some = dice.choice(([], tokens[start:end] * 2, [dice.choice(HOSTILE)]))
            tokens[start:end] = some
        return "".join(tokens).encode()

    def try_case(self, number: int, folder: Path) -> Verdict:
        """Render conversations twice with a case's template, if it is accepted."""
        files = {
            "chat_template.jinja": self.content(number),
            "tokenizer_config.json": b'{"eos_token": "[E]", "bos_token": "[B]"}',
        }
        try:
            limits = {"max_seconds": 0.5, "max_characters": 100_000}
            template = chat_template_of(Source(files), **limits)
            if template is None:
                return Verdict("refused", "a template: it is empty")
            texts = [template.render(said) for said in (*SAID, *SAID)]
        except KvcError as error:
            return refused(error, "a template")
        except Exception as error:
            return escaped(error)
        first, again = texts[: len(SAID)], texts[len(SAID) :]
        drawn = b"lipsum" in files["chat_template.jinja"] or _ADDRESS.search(str(first))
        if first != again and not drawn:
            return Verdict("differs", f"{first} | {again}"[:500])
        return Verdict("same")


class Recipes:
    """Hostile variants of recipes: lines are changed, doubled or exchanged."""

    name = "recipes"

    def __init__(self) -> None:
        self._files = [p.read_text() for p in sorted((ROOT / "recipes").glob("*.toml"))]
        self._lines = [line for text in self._files for line in text.splitlines()]

    def content(self, number: int) -> bytes:
        dice = random.Random(f"{self.name} {number}")
        lines = dice.choice(self._files).splitlines()
        for _ in range(dice.choice((1, 1, 2, 4))):
            at = dice.randrange(len(lines))
            other = dice.choice(self._lines)
            near = other_text(lines[at], dice)
            lines[at : at + 1] = dice.choice(([], [other], [lines[at], other], [near]))
            if not lines:
                return b""
        raw = "\n".join(lines).encode(errors="replace")
        return mutate_bytes(raw, dice) if dice.random() < 0.1 else raw

    def try_case(self, number: int, folder: Path) -> Verdict:
        """Read a case's recipe."""
        path = folder / "recipe.toml"
        path.write_bytes(self.content(number))
        try:
            load_recipes(str(path))
        except KvcError as error:
            return refused(error, "a recipe")
        except Exception as error:
            return escaped(error)
        return Verdict("same")


_TOKENIZERS = {
    "tokenizer of bytes": byte_level,
    "tokenizer of fallbacks": byte_fallback,
    "tokenizer of words": _words,
    "tokenizer of chances": _unigrams,
}
TEXT_FILES: Mapping[str, Callable[[], Tokenizers | Templates | Recipes]] = {
    **{name: partial(Tokenizers, name, make) for name, make in _TOKENIZERS.items()},
    **{name: partial(Templates, name) for name in TEMPLATES},
    "recipes": Recipes,
}
