"""Recipe for Table 1 of Shaw et al.: English into German with the base Transformer.

The data set is WMT 2014, with 4.5 million training pairs. It is downloaded.

Command:  python -m experiments train wmt14_de
Device:   eight GPUs, as in the paper; with fewer GPUs, --optimizer.accumulate saves memory
Minutes:  not run
Expected: not run; the paper has BLEU 26.5 with absolute and 26.8 with relative positions
"""

from distattn_jax.tasks import TranslationConfig, TranslationData, TranslationModelConfig
from distattn_jax.train import OptimizerConfig, OutputConfig

METHODS = ("vanilla", "relative_position", "relative_and_absolute")  # Table 1 and section 4.2
WARMUP_STEPS = 4000


def make_optimizer(features: int) -> OptimizerConfig:
    """Return Adam with the schedule of the Transformer paper (Vaswani et al. 2017, section 5.3).

    The paper's formula features^-0.5 min(step^-0.5, step warmup^-1.5) has its peak after the
    warm-up, where the learning rate is (features warmup)^-0.5.

    Args:
      features: Width of the model.
    """
    return OptimizerConfig(
        learning_rate=((features * WARMUP_STEPS) ** -0.5,),
        schedule="inverse_square_root",
        warmup_steps=WARMUP_STEPS,
        b2=0.98,
        epsilon=1e-9,
    )


def get_config() -> TranslationConfig:
    """Return the config with the settings of the paper: 100,000 steps, and no averaging.

    The paper uses eight GPUs. On each of them, a batch has at most 4096 source tokens and 4096
    target tokens.
    """
    return TranslationConfig(
        name="wmt14_de",
        methods=METHODS,
        steps=100_000,
        data=TranslationData(
            dataset="wmt14_de", longest=256, batch_tokens=8 * 4096, buckets=8, vocabulary=32_768
        ),
        model=TranslationModelConfig(
            layers=6,
            heads=8,
            head_features=64,
            features=512,
            hidden_features=1024,
            max_distance=16,
            dropout_rate=(0.1,),
        ),
        optimizer=make_optimizer(features=512),
        output=OutputConfig(evaluate_every=2_000),
    )
