"""Small parallel texts, and the config of a tiny translator that learns from them."""

import random

from distattn_jax.tasks import TranslationConfig, TranslationData, TranslationModelConfig
from tests.train.runs import quick_run

WORDS = {"one": "ein", "two": "zwo", "red": "rot", "old": "alt", "cow": "Kuh", "sea": "See"}
MODEL = TranslationModelConfig(
    layers=1, heads=2, head_features=4, features=8, hidden_features=8, dropout_rate=(0.0,)
)


def write_pairs(folder, *, words=(4,)):
    """Write train, validation and test in English and German, translated word by word.

    By default, all sentences have the same length, so that their programs are compiled once.

    Args:
      folder: Folder to create.
      words: Numbers of words that a sentence may have.
    """
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for split, count in {"train": 48, "validation": 8, "test": 8}.items():
        pairs = [draw.choices(list(WORDS), k=draw.choice(words)) for _ in range(count)]
        english = "".join(f"{' '.join(words)}\n" for words in pairs)
        german = "".join(f"{' '.join(WORDS[word] for word in words)}\n" for words in pairs)
        (folder / f"{split}.en").write_text(english)
        (folder / f"{split}.de").write_text(german)
    return folder


def make_config(folder, **fields):
    """Return the config of a tiny translator on the texts of `write_pairs`, with 60 steps.

    A vocabulary of 259 tokens consists of all bytes and three special tokens.
    """
    raw = folder / "raw"
    if not raw.exists():
        write_pairs(raw)
    data = {
        "dataset": "parallel_text",
        "directory": str(folder / "prepared"),
        "manual_dir": str(raw),
        "vocabulary": 259,
        "batch_tokens": 128,
        "buckets": 1,
        **fields.pop("data", {}),
    }
    return TranslationConfig(
        **{
            "name": "little",
            "methods": ("relative_position",),
            "data": TranslationData(**data),
            "model": MODEL,
            **quick_run(folder, steps=60, checkpoint_every=20, keep=3),
            **fields,
        }
    )
