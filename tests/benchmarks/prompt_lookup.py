"""Answers with guesses from the text itself, and without, in turns.

`python tests/benchmarks/prompt_lookup.py BUNDLE [--threads 2] [--rounds 3] [--rows 1]`.
BUNDLE is a chat model compiled with `--all-logits`, such as SmolLM2. Prints for each
task the tokens per second of both, their ratio, and the share of right guesses; the
tokens must be the same. With --rows, as many tasks run as a batch, beginning with each
task in turn; BUNDLE must be compiled with `--max-batch`. The number of rows whose
tokens differ is then printed too, since calls of other widths round differently.
"""

import argparse
import sys
import time
from statistics import median

from kvc.runtime import Program, load
from kvc.runtime.generation import BatchGeneration, generate
from kvc.runtime.tokenizers import chat_template_of

CODE = """def count_words(path):
    words = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                words[word] = words.get(word, 0) + 1
    return sorted(words.items(), key=lambda item: item[1], reverse=True)
"""
TEXT = (
    "The harbour of the town was built in 1782 by two brothers who traded in salt and "
    "timber. In the first winter a storm broke the northern wall, and the fishermen "
    "rebuilt it with stones from the old monastery. Since then the wall has stood, and "
    "every year in October the children of the town paint a stone of it blue."
)
TASKS = {
    "copy": f"Repeat this text exactly:\n\n{TEXT}",
    "summary": f"Summarize this text in its own words and sentences:\n\n{TEXT}",
    "code edit": f"Rename the variable words to counts:\n\n```python\n{CODE}```",
    "free text": "Write a short story about a lighthouse keeper.",
    "list": "List twenty animals, each with a short description.",
}


def run(
    program: Program, prompts: list[str], drafted: bool
) -> tuple[float, list[list[int]], BatchGeneration]:
    """Return the tokens per second of decoding, the tokens, and the generation."""
    batch = {"batch": len(prompts)} if len(prompts) > 1 else {}
    with program.session(snapshots=1, **batch) as session:
        made = generate(
            session,
            prompts,
            draft="prompt" if drafted else None,
            max_tokens=160,
            temperature=0,
            repetition_penalty=1.0,
        )
        next(made)
        began = time.perf_counter()
        for _ in made:
            pass
        seconds = time.perf_counter() - began
        return sum(len(row) - 1 for row in made.tokens) / seconds, [*made.tokens], made


def main() -> None:
    """Run each task in both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1)
    options = parser.parse_args()
    with load(options.bundle, threads=options.threads) as program:
        template = chat_template_of(program)
        if template is None:
            sys.exit("the bundle has no chat template")
        names = [*TASKS] * 2
        for at, name in enumerate(TASKS):
            tasks = [TASKS[each] for each in names[at : at + options.rows]]
            prompts = [
                template.render([{"role": "user", "content": task}]) for task in tasks
            ]
            speeds: dict[bool, list[float]] = {True: [], False: []}
            made, tokens = {}, {}
            for _ in range(options.rounds):
                for drafted in (False, True):
                    speed, tokens[drafted], made[drafted] = run(
                        program, prompts, drafted
                    )
                    speeds[drafted].append(speed)
            pairs = zip(tokens[True], tokens[False], strict=True)
            differ = sum(one != other for one, other in pairs)
            assert options.rows > 1 or not differ, name
            plain, drafted = (median(speeds[way]) for way in (False, True))
            right = made[True].acceptance
            count = sum(map(len, tokens[True]))
            print(
                f"{name:10} {count:4} tokens  plain {plain:6.1f}, "
                f"drafted {drafted:6.1f} tokens/s, {drafted / plain:.2f}; {right:.0%} "
                f"of {made[True].drafted} guesses right"
                f"{f', {differ} rows differ' if differ else ''}",
                flush=True,
            )


if __name__ == "__main__":
    main()
