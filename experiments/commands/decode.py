"""Time translation of random sentences, with and without cached keys and values."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from distattn_jax.models import METHODS, Sizes, Translator
from distattn_jax.train.options import Options, option, parse_options
from experiments.bench.decoding import time_decoding


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Options):
    """Options of the command `decode`. By default, the model has the base size of Shaw et al."""

    methods: tuple[str, ...] = option(
        ("vanilla", "relative_position", "distance_aware"),
        "attention methods to time",
        choices=tuple(METHODS),
    )
    layers: int = option(6, "layers of the encoder, and layers of the decoder")
    features: int = option(512, "width of the model")
    heads: int = option(8, "attention heads")
    hidden_features: int = option(1024, "width of the hidden layer of the feed-forward networks")
    vocabulary: int = option(32_768, "size of the vocabulary")
    batch: int = option(64, "sentences translated at a time")
    source: int = option(64, "tokens of each source sentence")
    tokens: int = option(64, "tokens of each translation")
    beams: tuple[int, ...] = option((1, 4), "numbers of hypotheses")
    dtype: str = option("bfloat16", "dtype of the computation", choices=("float32", "bfloat16"))
    repeats: int = option(3, "number of timings; the fastest is printed")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "layers", "heads", "batch", "source", "tokens", "beams", "repeats")
        self.require_at_least(3, "vocabulary")
        self.require(self.features % self.heads == 0, "features", "a multiple of --heads")


def main(arguments: Sequence[str]) -> None:
    """Run `decode [--option value ...]`, and print tokens per second.

    Only the tokens of the best hypothesis of each sentence are counted.
    """
    config = parse_options(DecodeConfig(), list(arguments), program="python -m experiments decode")
    print(
        f"Tokens per second: {config.batch} sentences of {config.source} tokens, with translations "
        f"of {config.tokens} tokens, on {jax.devices()[0].device_kind}"
    )
    print(f"{'method':<28}{'beam':>6}{'cached':>14}{'uncached':>14}{'ratio':>8}")
    source = jax.random.randint(
        jax.random.key(0), (config.batch, config.source), 3, config.vocabulary
    )
    for method in config.methods:
        model = make_model(config, method, nnx.Rngs(0))
        for beam_size in config.beams:
            options = {"tokens": config.tokens, "beam_size": beam_size, "repeats": config.repeats}
            cached, uncached = (
                config.batch * config.tokens / time_decoding(model, source, cached=one, **options)
                for one in (True, False)
            )
            rates = f"{cached:>14,.0f}{uncached:>14,.0f}{cached / uncached:>8.1f}"
            print(f"{method:<28}{beam_size:>6}{rates}", flush=True)


@nnx.jit(static_argnames=("config", "method"))
def make_model(config: DecodeConfig, method: str, rngs: nnx.Rngs) -> Translator:
    """Return a translator with random parameters."""
    sizes = Sizes(
        heads=config.heads,
        head_features=config.features // config.heads,
        features=config.features,
        layers=config.layers,
        hidden_features=config.hidden_features,
    )
    return Translator(
        config.vocabulary, method=method, sizes=sizes, dtype=jnp.dtype(config.dtype), rngs=rngs
    )
