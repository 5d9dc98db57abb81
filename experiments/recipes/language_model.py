"""Recipe for your own texts: train a language model on the text files of a folder.

Blank lines separate the texts of a file. Files such as validation.txt and test_2.txt are the
validation set and the test set. If the folder has no such files, every 20th text is moved to the
validation set, and another 20th to the test set.

Command:  python -m experiments train language_model --data.manual-dir FOLDER
Then:     python -m experiments generate runs/language_model/distance_aware --prompt "Once upon"
Device:   any, because the model is small; --model.layers and --model.features enlarge it
Minutes:  depends on the texts
Expected: depends on the texts
"""

from distattn_jax.tasks import LanguageModelingConfig
from distattn_jax.train import OptimizerConfig


def get_config() -> LanguageModelingConfig:
    """Return the config: 4 layers of width 256, and examples of 256 tokens."""
    return LanguageModelingConfig(
        name="language_model",
        methods=("distance_aware",),
        epochs=10.0,
        min_steps=200,
        optimizer=OptimizerConfig(
            learning_rate=(1e-3,), schedule="cosine", warmup_steps=200, warmup_share=0.1, b2=0.98
        ),
    )
