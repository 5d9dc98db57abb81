"""Recipe for your own texts: fine-tune a pre-trained model with guides, and without one.

MODEL is the folder or hub name of a BERT-like model in the layout of Hugging Face. FOLDER contains
the files train, validation and test, as in the recipe text_files. The methods are mdg (map
discrimination), pdg (pattern decorrelation), ag (both of them) and none (the baseline).

Command:  python -m experiments train guided_texts --model.pretrained MODEL --data.manual-dir FOLDER
Then:     python -m experiments predict runs/guided_texts/mdg TEXTS
Device:   any; a GPU for more than a few thousand texts
Minutes:  depends on the texts and the model
Expected: depends on the texts; the gain of a guide is often smaller than the spread of the seeds
"""

import dataclasses

from distattn_jax.tasks import PretrainedClassificationConfig, PretrainedClassificationData
from distattn_jax.train import OptimizerConfig
from experiments.recipes import multinli


def get_config() -> PretrainedClassificationConfig:
    """Return the config of the recipe `multinli`, changed to your own texts and four guides.

    The learning rate is larger than that of the paper and falls to 0, because own data sets are
    smaller than MultiNLI.
    """
    return dataclasses.replace(
        multinli.get_config(),
        name="guided_texts",
        methods=("none", "mdg", "pdg", "ag"),
        epochs=4.0,
        min_steps=200,
        data=PretrainedClassificationData(dataset="text_files", batch_size=32, longest=128),
        optimizer=OptimizerConfig(learning_rate=(5e-5,), schedule="linear"),
    )
