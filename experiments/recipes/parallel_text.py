"""Recipe for your own parallel texts: train a translator on the files of a folder.

The folder contains train, validation and test in two languages, with one sentence on each line, for
example train.en and train.de. Line i of one file is the translation of line i of the other file.

Command:  python -m experiments train parallel_text --data.manual-dir FOLDER --data.source en
          --data.target de
Device:   any, because the model is small; --model.layers and --model.features enlarge it
Minutes:  depends on the texts
Expected: depends on the texts
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig, TranslationData
from experiments.recipes import multi30k


def get_config() -> TranslationConfig:
    """Return the config, with the model of the recipe multi30k and one method.

    A vocabulary of 8,192 tokens is enough for tens of thousands of pairs. For millions of pairs,
    use 32,768 tokens.
    """
    config = multi30k.get_config()
    return dataclasses.replace(
        config,
        name="parallel_text",
        methods=("relative_position",),
        min_steps=200,
        data=TranslationData(dataset="parallel_text", vocabulary=8192),
        optimizer=dataclasses.replace(config.optimizer, warmup_share=0.1),
    )
