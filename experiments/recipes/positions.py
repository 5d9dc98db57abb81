"""Recipe for Shaw et al.: kinds of positions in small translators, trained side by side.

One program trains absolute, relative, both and no positions, and relative positions of keys or of
values alone (Tables 1 and 3). The data set is Multi30k, unless --data.dataset parallel_text and
--data.manual-dir FOLDER are given.

Before:   python -m experiments search positions
Command:  python -m experiments train positions --name multi30k_small
Table 2:  python -m experiments train positions --name multi30k_small_distances --seeds 2
          --model.key-distance 0 1 2 4 16 64 256 --model.value-distance -2 --model.sinusoids 0
Medium:   python -m experiments train positions --name multi30k_medium --model.layers 4
          --model.features 512 --model.heads 8 --model.value-distance -2
Then:     python -m experiments evaluate runs/multi30k_small/switched_positions
Device:   a GPU
Minutes:  not run
Expected: not run
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig
from experiments.recipes import multi30k


def get_config() -> TranslationConfig:
    """Return the config: the model of the recipe multi30k, with all kinds of positions."""
    config = multi30k.get_config()
    return dataclasses.replace(
        config,
        name="positions",
        methods=("switched_positions",),
        seeds=3,
        model=dataclasses.replace(
            config.model,
            max_distance=64,
            key_distance=(-1, 16),
            value_distance=(-1, 16),
            sinusoids=(0, 1),
        ),
    )
