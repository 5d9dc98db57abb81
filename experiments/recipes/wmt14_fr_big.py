"""Recipe for Table 1 of Shaw et al.: English into French with the big Transformer.

The data set is WMT 2014, with about 40 million training pairs. It is downloaded. The paper
translates with the mean of the last 20 checkpoints.

Command:  python -m experiments train wmt14_fr_big
After:    python -m experiments evaluate runs/wmt14_fr_big/relative_position --average 20
Device:   eight GPUs, as in the paper; --optimizer.accumulate saves memory on fewer
Minutes:  not run
Expected: not run; the paper has BLEU 41.2 with absolute and 41.5 with relative positions
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig
from experiments.recipes import wmt14_de_big, wmt14_fr


def get_config() -> TranslationConfig:
    """Return the config with the settings of the paper: those of wmt14_de_big, but dropout 0.1."""
    return dataclasses.replace(
        wmt14_de_big.get_config(),
        name="wmt14_fr_big",
        data=wmt14_fr.get_config().data,
        model=dataclasses.replace(wmt14_de_big.MODEL, dropout_rate=(0.1,)),
    )
