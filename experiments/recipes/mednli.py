"""Recipe for Tables 1 to 4 of the attention-guiding paper: classify entailment in medical texts.

The data set is MedNLI, with 3 classes.

Before:   python -m experiments search mednli --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train mednli --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/mednli_search
Device:   a GPU
Minutes:  not run
Expected: not run (the data need a signed agreement); the paper's BERT-base has 76.02 % without a
          guide and 77.22 % with attention guiding (both guides of the paper)
"""

import dataclasses

from distattn_jax.tasks import PretrainedClassificationConfig, PretrainedClassificationData
from experiments.recipes import multinli


def get_config() -> PretrainedClassificationConfig:
    """Return the config of the recipe `multinli`, changed to the data set MedNLI and 20 epochs."""
    return dataclasses.replace(
        multinli.get_config(),
        name="mednli",
        epochs=20.0,
        data=PretrainedClassificationData(dataset="mednli", longest=256),
    )
