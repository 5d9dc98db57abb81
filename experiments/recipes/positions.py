"""Recipe for Shaw et al.: train small translators with several kinds of positions side by side.

The kinds are absolute positions, relative positions, both and none, and relative positions of only
the keys or only the values (Tables 1 and 3). The grid has two more kinds, which no table contains:
absolute positions with relative positions of only the keys or only the values. The data set is
Multi30k, unless --data.dataset parallel_text and --data.manual-dir FOLDER are given.

The search prints a learning rate and a dropout rate. Add them to each command as
--optimizer.learning-rate and --model.dropout-rate. Distances above --model.max-distance, which is
64, have the same effect as 64.

Before:   python -m experiments search positions
Command:  python -m experiments train positions --name multi30k_small
Table 2:  python -m experiments train positions --name multi30k_small_distances --seeds 2
          --model.key-distance 0 1 2 4 16 64 256 --model.value-distance -2 --model.sinusoids 0
Medium:   python -m experiments train positions --name multi30k_medium --model.layers 4
          --model.features 512 --model.heads 8 --model.value-distance -2
          (`experiments/papers/shaw/search.py` has the command of its search)
Then:     python -m experiments evaluate runs/multi30k_small/switched_positions
Device:   a GPU
Minutes:  5 (H200, 24 small models, 20 epochs)
Expected: BLEU 37.9 (relative), 36.9 (absolute), 28.8 (none), with --epochs 20, a learning rate of
          3e-3 and a dropout rate of 0.1
"""

import dataclasses

from distattn_jax.tasks import TranslationConfig
from experiments.recipes import multi30k


def get_config() -> TranslationConfig:
    """Return the config: the model of the recipe multi30k, with every kind of positions."""
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
