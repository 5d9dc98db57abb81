"""Who finds the nearest opinion? Distance-aware attention beside the vanilla one, and none at all.

Command:  make train   (or python -m experiments train nearest)
Device:   CPU, 2 cores
Minutes:  2
Expected: test accuracy 57 % without positions, 68 % vanilla, 90 % distance-aware (majority 24 %)
"""

from distattn_jax.train import Config, DataConfig, ModelConfig, OptimizerConfig, OutputConfig

SENTENCE = "the awful room we had on friday , service quite pleasant with a superb view"


def get_config() -> Config:
    """Three methods, three seeds each."""
    return Config(
        name="nearest",
        task="nearest",
        methods=("distance_aware", "vanilla", "no_positions"),
        seeds=3,
        epochs=3.0,
        data=DataConfig(buckets=1),
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
