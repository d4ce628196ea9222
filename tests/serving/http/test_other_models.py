"""Embeddings, speech and pictures, and several models of one server."""

import base64
import io
import json
import re
import sys
import wave
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from PIL import Image
from running_servers import running
from seeing_models import picture
from spoken_sounds import sound

from kvc.runtime import Conversation, load
from kvc.runtime.embedding import embed
from kvc.runtime.speech import transcribe
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

TEXTS = ["Once upon a time", "a small compiler"]


@pytest.fixture(scope="module")
def server(embedding_bundle, speech_bundle, joined_bundle):
    bundles = {"words": embedding_bundle, "ears": speech_bundle, "eyes": joined_bundle}
    with running(bundles) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def test_embeddings_are_those_of_embed(client, embedding_bundle):
    with load(embedding_bundle) as program:
        wanted = embed(program, TEXTS)
        tokens = [list(tokenizer_of(program).encode(text)) for text in TEXTS]
    made = client.embeddings.create(model="words", input=TEXTS)  # in base64
    found = np.array([one.embedding for one in made.data], np.float32)
    np.testing.assert_array_equal(found, wanted)
    plain = client.embeddings.create(
        model="words", input=tokens, encoding_format="float"
    )
    found = np.array([one.embedding for one in plain.data], np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert plain.usage.prompt_tokens == sum(map(len, tokens))
    one = client.embeddings.create(
        model="words", input=TEXTS[0], dimensions=wanted.shape[1]
    )
    assert len(one.data) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dimensions": 3}, "the length of this model's vectors"),
        ({"input": []}, "a text"),
        ({"input": [""]}, "at least one token"),
        ({"input": ["a", 1]}, "list of token ids"),
        ({"input": "word " * 2000}, "tokens"),
        ({"input": ["a", " " * 1_000_000]}, "at most .* characters, for"),
        ({"input": [[1_000_000]]}, "expected tokens of 0 to 234"),
        ({"encoding_format": "hex"}, "base64"),
        ({"model": "eyes"}, "it cannot embed texts"),
    ],
)
def test_what_cannot_be_embedded_is_refused(server, changes, said):
    body = {"model": "words", "input": "a", **changes}
    answer = server.post("/v1/embeddings", json.dumps(body).encode())
    assert answer.status == 400, answer.body
    assert re.search(said, answer.json["error"]["message"])


def wav(samples, rate=16_000):
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return "talk.wav", made.getvalue()


def test_speech_is_written_down(client, speech_bundle, tmp_path):
    samples = sound(1.7)
    file = wav(samples)
    heard = np.frombuffer(file[1][44:], "<i2").astype(np.float32) / 2**15
    with load(speech_bundle) as program, program.session() as session:
        wanted = transcribe(session, heard, language="en")
    create = client.audio.transcriptions.create
    given = {"model": "ears", "file": file, "language": "en"}
    assert create(**given).text == wanted.text
    text = create(response_format="text", **given)
    assert text.strip() == wanted.text
    told = create(response_format="verbose_json", **given)
    assert told.duration == pytest.approx(1.7, abs=0.01)
    assert told.language == "en"
    assert [(s.start, s.end) for s in told.segments] == [
        (s.start, s.end) for s in wanted.segments
    ]
    assert create(response_format="vtt", **given).startswith("WEBVTT\n\n1\n00:00:0")
    assert " --> 00:00:0" in create(response_format="srt", **given)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        translated = client.audio.translations.create(model="ears", file=file)
    assert isinstance(translated.text, str)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"file": ("a.wav", b"no sound")}, "soundfile"),
        ({"file": ("a.wav", b"RIFF")}, "wav"),
        ({"file": wav(sound(0.2), 8000)}, "8000 samples a second"),
        ({"timestamp_granularities": ["word"]}, "times of words"),
        ({"prompt": "a"}, "does not know the field"),
        ({"language": "xx"}, "language"),
        ({"model": "words"}, "it cannot hear speech"),
    ],
)
def test_sounds_that_cannot_be_heard_are_refused(client, given, said):
    told = {"model": "ears", "file": wav(sound(0.2)), **given}
    with pytest.raises(openai.BadRequestError, match=said):
        client.audio.transcriptions.create(**told)


def test_a_small_file_of_a_long_silence_is_not_unpacked(client, monkeypatch):
    class SoundFile:  # as the package, for a file that says how much it holds
        samplerate, frames, channels = 16_000, 10**10, 1
        __init__ = __exit__ = lambda self, *_: None

        def __enter__(self):
            return self

        def read(self, **_):
            raise MemoryError

    monkeypatch.setitem(sys.modules, "soundfile", SimpleNamespace(SoundFile=SoundFile))
    with pytest.raises(openai.BadRequestError, match="more than 10,800 s"):
        client.audio.transcriptions.create(model="ears", file=("a.flac", b"fLaC"))


def url(image):
    made = io.BytesIO()
    image.save(made, "PNG")
    return "data:image/png;base64," + base64.b64encode(made.getvalue()).decode()


def message(*pictures, text="5 6"):
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def test_pictures_are_seen(client, joined_bundle):
    given = {"model": "eyes", "max_tokens": 5, "temperature": 0}
    made = client.chat.completions.create(messages=message(url(picture(0))), **given)
    with load(joined_bundle) as program, program.session(batch=1) as session:
        conversation = Conversation(
            session,
            tokenizer_of(program),
            chat_template_of(program),
            special_tokens="text",
            max_tokens=5,
            temperature=0,
        )
        wanted = "".join(conversation.say("5 6", [picture(0)]))
    assert made.choices[0].message.content == wanted


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://example.org/a.png", "fetches nothing from the network"),
        ("file:///etc/passwd", "fetches nothing"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%", "base64 after the comma"),
        ("data:image/png;base64,YWJj", "not a picture"),
    ],
)
def test_other_addresses_of_pictures_are_refused(client, address, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(model="eyes", messages=message(address))


def test_pictures_together_are_limited_in_number_and_pixels(client):
    large = url(Image.new("1", (8192, 5000)))  # some kilobytes
    with pytest.raises(openai.BadRequestError, match="8192 x 5000 pixels"):
        client.chat.completions.create(model="eyes", messages=message(large, large))
    many = [url(picture(0))] * 65
    with pytest.raises(openai.BadRequestError, match="at most 64 pictures"):
        client.chat.completions.create(model="eyes", messages=message(*many))


def test_a_model_without_pictures_says_so(client, chat_bundle):
    with running({"chat": chat_bundle}) as other:
        found = message(url(picture(0)))
        with pytest.raises(openai.BadRequestError, match="reads no pictures") as caught:
            other.client().chat.completions.create(model="chat", messages=found)
        assert caught.value.param == "messages"


def test_a_model_must_be_named_if_there_are_several(server, client):
    answer = server.post("/v1/embeddings", b'{"input": "a"}')
    assert answer.status == 404
    said = answer.json["error"]["message"]
    assert said == "the request names no model; models: words, ears, eyes"
    with pytest.raises(openai.BadRequestError, match="embeds texts; it cannot answer"):
        client.chat.completions.create(
            model="words", messages=[{"role": "user", "content": "a"}]
        )
