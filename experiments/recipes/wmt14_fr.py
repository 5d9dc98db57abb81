"""Recipe for Table 1 of Shaw et al.: English into French with the base Transformer.

The data set is WMT 2014, with about 40 million training pairs. It is downloaded.

Command:  python -m experiments train wmt14_fr
Device:   eight GPUs, as in the paper; --optimizer.accumulate saves memory on fewer
Minutes:  not run
Expected: not run; the paper has BLEU 38.2 with absolute and 38.7 with relative positions
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig
from experiments.recipes import wmt14_de


def get_config() -> TranslationConfig:
    """Return the config with the settings of the paper: those of the recipe wmt14_de."""
    config = wmt14_de.get_config()
    data = dataclasses.replace(config.data, dataset="wmt14_fr", target="fr")
    return dataclasses.replace(config, name="wmt14_fr", data=data)
