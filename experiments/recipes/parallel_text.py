"""Recipe for your own parallel texts: train a translator on the files of a folder.

The folder contains train, validation and test in two languages, with one sentence on each line, for
example train.en and train.de. Line i of one file is the translation of line i of the other.

Command:  python -m experiments train parallel_text --data.manual-dir FOLDER --data.source en
          --data.target de
Device:   any; the model is small, and larger ones are options (--model.layers, --model.features)
Minutes:  depends on the texts
Expected: depends on the texts
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig, TranslationData
from experiments.recipes import multi30k


def get_config() -> TranslationConfig:
    """Return the config, with the model of the recipe multi30k and one method.

    A vocabulary of 8192 suits tens of thousands of pairs. Millions of pairs can use 32,768.
    """
    return dataclasses.replace(
        multi30k.get_config(),
        name="parallel_text",
        methods=("relative_position",),
        data=TranslationData(dataset="parallel_text", vocabulary=8192),
    )
