"""Recipe for Table 1 of Shaw et al.: English into German with the big Transformer.

The data set is WMT 2014, with 4.5 million training pairs. It is downloaded. The paper translates
with the mean of the last 20 checkpoints.

Command:  python -m experiments train wmt14_de_big
After:    python -m experiments evaluate runs/wmt14_de_big/relative_position --average 20
Device:   eight GPUs, as in the paper; --optimizer.accumulate saves memory on fewer
Minutes:  not run
Expected: not run; the paper has BLEU 27.9 with absolute and 29.2 with relative positions
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig, TranslationModelConfig
from distattn_jax.train import OutputConfig
from experiments.recipes import wmt14_de

# The heads of a layer share the position vectors.
MODEL = TranslationModelConfig(
    layers=6,
    heads=16,
    head_features=64,
    features=1024,
    hidden_features=4096,
    max_distance=8,
    shared_tables=True,
    dropout_rate=(0.3,),
)


def get_config() -> TranslationConfig:
    """Return the config with the settings of the paper: 300,000 steps.

    A run keeps the last 20 checkpoints, each of about 4 GB.
    """
    return dataclasses.replace(
        wmt14_de.get_config(),
        name="wmt14_de_big",
        steps=300_000,
        model=MODEL,
        optimizer=wmt14_de.make_optimizer(features=1024),
        output=OutputConfig(evaluate_every=2_000, checkpoint_every=1_000, keep=20),
    )
