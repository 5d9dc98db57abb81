"""Recipe for translation: image captions from English into German, with a small Transformer.

The data set is Multi30k, with 29,000 training pairs. It is downloaded.

Command:  python -m experiments train multi30k
Device:   a GPU, or a CPU with --epochs 3
Minutes:  not run
Expected: not run
"""

from distattn_jax.tasks import TranslationConfig, TranslationData, TranslationModelConfig
from distattn_jax.train import OptimizerConfig

# Adam has the settings of the Transformer paper, but a shorter warm-up, because the data set is
# small.
OPTIMIZER = OptimizerConfig(
    learning_rate=(1e-3,), schedule="inverse_square_root", warmup_steps=1000, b2=0.98, epsilon=1e-9
)


def get_config() -> TranslationConfig:
    """Return the config: encoder and decoder with 3 layers each, of width 256."""
    return TranslationConfig(
        name="multi30k",
        methods=("vanilla", "relative_position"),
        epochs=30.0,
        data=TranslationData(dataset="multi30k", vocabulary=8192),
        model=TranslationModelConfig(dropout_rate=(0.3,)),
        optimizer=OPTIMIZER,
    )
