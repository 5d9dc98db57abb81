"""Recipe for your own texts: train a language model on the text files of a folder.

Blank lines separate the texts of a file. Files such as validation.txt and test_2.txt are these
splits. If there are none, every 20th text goes to each.

Command:  python -m experiments train language_model --data.manual-dir FOLDER
Then:     python -m experiments generate runs/language_model/distance_aware --prompt "Once upon"
Device:   any; the model is small, and larger ones are options (--model.layers, --model.features)
Minutes:  depends on the texts
Expected: depends on the texts
"""

from distattn_jax.tasks import LanguageModelingConfig
from distattn_jax.train import OptimizerConfig


def get_config() -> LanguageModelingConfig:
    """Return the config: 4 layers, 256 wide, examples of 256 tokens."""
    return LanguageModelingConfig(
        name="language_model",
        methods=("distance_aware",),
        epochs=10.0,
        optimizer=OptimizerConfig(
            learning_rate=(1e-3,), schedule="cosine", warmup_steps=200, b2=0.98
        ),
    )
