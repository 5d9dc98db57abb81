"""Recipe for a synthetic task: find the opinion word nearest to "service".

The recipe compares three attention variants.

Command:  make train   (or python -m experiments train nearest)
Device:   CPU, 2 cores
Minutes:  2
Expected: test accuracy 57 % without positions, 67 % for the plain Transformer, 90 % for
          distance-aware attention; always predicting the most frequent label reaches 24 %
"""

from distattn_jax.tasks import ModelConfig, TextClassificationConfig, TextClassificationData
from distattn_jax.train import OptimizerConfig, OutputConfig

SENTENCE = "the awful room we had on friday , service quite pleasant with a superb view"


def get_config() -> TextClassificationConfig:
    """Return the config: three attention variants with three seeds each."""
    return TextClassificationConfig(
        name="nearest",
        methods=("distance_aware", "vanilla", "no_positions"),
        seeds=3,
        epochs=3.0,
        data=TextClassificationData(dataset="nearest", buckets=1),
        model=ModelConfig(
            heads=4,
            head_features=8,
            features=32,
            hidden_features=64,
            embedding_features=32,
            pooling_features=32,
            dropout_rate=(0.0,),
            initial_weight=(0.2,),
        ),
        optimizer=OptimizerConfig(learning_rate=(1e-2,), schedule="cosine", warmup_steps=50),
        output=OutputConfig(log_every=25, evaluate_every=250),
    )
