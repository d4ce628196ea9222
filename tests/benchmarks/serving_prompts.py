"""Prompts of so many tokens, made of words, none like another.

In: what servers count of two prompts, a number of tokens. Out: texts. English words
are mostly one token each, so that a server's own counts tell how many words to take.
"""

import random
from dataclasses import dataclass

_LISTED = """
    time year people way day man thing woman life child world school state family
    student group country problem hand part place case week company system program
    question work government number night point home water room mother area money
    story fact month lot right study book eye job word business issue side kind head
    house service friend father power hour game line end member law car city
    community name president team minute idea body information back parent face
    others level office door health person art war history party result change
    morning reason research girl guy moment air teacher force education foot boy age
    policy music market sense death nation college interest effect river plan paper
    garden summer winter stone light bird tree fire wind road bridge island letter
    window table bread bottle captain forest mountain village horse ship silver gold
    the and that have for not with you this but his from they say her she will one
    all would there their what out about who get which when make can like just him
    know take into good some could them see other than then now look only come over
    think also after use two how our first well even new want because any these give
    most
"""
WORDS = tuple(_LISTED.split())


@dataclass(frozen=True, slots=True)
class Counting:
    """How many tokens a prompt of words has: `base + words * each`."""

    base: float
    each: float

    def words(self, tokens: int) -> int:
        """Return how many words make a prompt of so many tokens, at least one."""
        return max(1, round((tokens - self.base) / self.each))


def counting(few: tuple[int, int], many: tuple[int, int]) -> Counting:
    """Return how tokens are counted, from two prompts: words, and tokens of each."""
    each = (many[1] - few[1]) / (many[0] - few[0])
    return Counting(few[1] - few[0] * each, each)


def text(words: int, seed: str) -> str:
    """Return a text of words that is the same for the same seed alone."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))
