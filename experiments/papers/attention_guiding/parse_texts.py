"""Parse texts with spaCy and print them in the format CoNLL-U, for the guide `dependency`.

The texts are from a file of JSON lines. Only this script needs spaCy. It imports nothing of this
project, so that it can be run in a separate environment:

    python parse_texts.py PIPELINE multinli_1.0_train.jsonl sentence1 sentence2 > FILE.conllu
    python parse_texts.py PIPELINE COVIDFACT_dataset.jsonl claim evidence > FILE.conllu

PIPELINE is the name or the folder of a spaCy pipeline, such as en_core_web_sm. FILE.conllu is the
value for the option `--data.parses` of the command `train`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_texts(path: Path, fields: list[str]) -> list[str]:
    """Return the distinct texts in the given fields of a JSON-lines file, without empty texts.

    The texts are in the order of the file. Texts in a list are joined to one text.
    """
    found: dict[str, None] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                values = [row[field] for field in fields]
                texts = [value if isinstance(value, str) else " ".join(value) for value in values]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}:{number}: must be an object with texts in {', '.join(fields)}; "
                    f"{error!r}."
                ) from error
            found |= dict.fromkeys(text.strip() for text in texts)
    return [text for text in found if text]


def format_document(document: Any) -> str:
    """Format a spaCy document as CoNLL-U, without its white-space tokens."""
    sentences = (list(_format_words(sentence)) for sentence in document.sents)
    return "# newdoc\n" + "".join("\n".join(lines) + "\n\n" for lines in sentences if lines)


def _format_words(sentence: Any) -> Iterator[str]:
    """Yield one CoNLL-U line per word of a spaCy sentence."""
    words = [token for token in sentence if not token.is_space]
    numbers = {word.i: str(number) for number, word in enumerate(words, start=1)}
    for word in words:
        head = word.head
        while head.is_space and head.head.i != head.i:  # Skip heads that are white space.
            head = head.head
        is_root = head.i == word.i or head.is_space
        fields = [numbers[word.i], word.text, "_", word.pos_ or "_", word.tag_ or "_", "_"]
        fields += ["0", "root"] if is_root else [numbers[head.i], word.dep_ or "_"]
        yield "\t".join([*fields, "_", "_" if word.whitespace_ else "SpaceAfter=No"])


def main() -> None:
    """Parse the texts of a file and print them in the format CoNLL-U."""
    import spacy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", help="name or folder of a spaCy pipeline with a parser")
    parser.add_argument("file", type=Path, help="JSON-lines file")
    parser.add_argument("fields", nargs="+", help="fields that hold a text or a list of texts")
    options = parser.parse_args()
    pipeline = spacy.load(options.pipeline, disable=["ner"])
    for document in pipeline.pipe(read_texts(options.file, options.fields)):
        print(format_document(document), end="")


if __name__ == "__main__":
    main()
