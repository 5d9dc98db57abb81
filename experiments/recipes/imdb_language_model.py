"""Recipe for "train short, test long": language models with all kinds of positions.

The texts are the reviews of IMDB, joined with [END] after each review. The models are trained on
256 tokens (--data.longest), and measured on up to 8192 tokens.
`python -m experiments report when_to_use --details` prints the command with the grid of
hyperparameters.

Command:  python -m experiments train imdb_language_model
Then:     python -m experiments perplexity runs/imdb_language_model/{vanilla,distance_aware,alibi}
          --lengths 256 512 1024 2048 4096 8192
Device:   a GPU
Minutes:  2 to 3 for each method with the options of the report, on an H200 shared by 6 to 8 runs
Expected: with these options, test perplexity at 256 and 8192 tokens: Transformer-XL 88.09 and
          89.95, KERPLE with a power 89.85 and 89.14, ALiBi 91.15 and 90.41, distance-aware 94.03
          and 104.44, sinusoids 119.08 and 214.04
"""

from distattn_jax.tasks import LanguageModelingConfig, LanguageModelingData
from distattn_jax.train import OptimizerConfig
from experiments.recipes.ag import METHODS as ENCODERS

METHODS = (
    *ENCODERS,
    *(f"distance_aware_{mapping}" for mapping in ("clip", "linear", "exponent", "sigmoid")),
    *(f"distance_aware_{adjust}" for adjust in ("early_add", "late_multiply", "late_add")),
    "distance_aware_score_bias",
    "alibi",
    "kerple_log",
    "kerple_power",
    "t5_bias",
)


def get_config() -> LanguageModelingConfig:
    """Return the config: 4 layers of width 256, and 5 seeds of each method."""
    return LanguageModelingConfig(
        name="imdb_language_model",
        methods=METHODS,
        seeds=5,
        epochs=4.0,
        data=LanguageModelingData(dataset="imdb", longest=256, batch_size=64),
        optimizer=OptimizerConfig(
            learning_rate=(1e-3,), schedule="cosine", warmup_steps=500, b2=0.98
        ),
    )
