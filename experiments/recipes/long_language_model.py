"""Recipe for long texts: train a language model on examples of 32,768 tokens of your own files.

The text files are those of the recipe language_model. All heads of the methods distance_aware* and
two_sided* start as local heads (--model.local-heads), whose time is linear in the length of a text.
The method two_sided_linear_decay forgets distant tokens. The method rotary attends to all tokens,
or to the last ones with --model.window 1024. Longer examples: --data.longest 131072. Several
devices share each example with --mesh.sequence 4.

Command:  python -m experiments train long_language_model --data.manual-dir FOLDER
          --methods distance_aware two_sided_linear_decay rotary
Then:     python -m experiments perplexity runs/long_language_model/distance_aware --lengths 32768
Device:   a GPU with the fused kernels, or a TPU
Minutes:  depends on the texts
Expected: depends on the texts
"""

from distattn_jax.tasks import (
    LanguageModelConfig,
    LanguageModelingConfig,
    LanguageModelingData,
)
from distattn_jax.train import OptimizerConfig


def get_config() -> LanguageModelingConfig:
    """Return the config: 4 layers of width 512 with 8 heads, in bfloat16, without dropout."""
    return LanguageModelingConfig(
        name="long_language_model",
        methods=("distance_aware",),
        epochs=1.0,
        min_steps=200,
        data=LanguageModelingData(vocabulary=16_384, longest=32_768, batch_size=4, buckets=1),
        model=LanguageModelConfig(
            layers=4,
            heads=8,
            head_features=64,
            features=512,
            hidden_features=2048,
            dropout_rate=(0.0,),
            dtype="bfloat16",
            remat=True,
            local_heads=True,
        ),
        optimizer=OptimizerConfig(
            learning_rate=(1e-3,), schedule="cosine", warmup_steps=200, warmup_share=0.1, b2=0.98
        ),
    )
