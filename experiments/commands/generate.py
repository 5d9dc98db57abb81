"""Continue a text with a trained language model."""

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax.data import decode, encode, round_length
from distattn_jax.models import LanguageModel
from distattn_jax.tasks import LoadedModel, load
from experiments.commands.train import enable_compilation_cache

MOST_TOKENS = 2**16  # The cache of the keys and values of more tokens would fill the memory.


def main(arguments: Sequence[str]) -> None:
    """Run `generate RUN [--prompt TEXT ...]`: print a continuation of each prompt."""
    parser = argparse.ArgumentParser(prog="python -m experiments generate", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/language_model/distance_aware")
    parser.add_argument(
        "--prompt", nargs="+", default=[""], help="texts to continue (now: the empty text)"
    )
    parser.add_argument(
        "--tokens", type=int, default=100, help="largest number of new tokens (now: 100)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="divisor of the logits; 0 takes the most probable token (now: 0.8)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        help="sample from the smallest set of most probable tokens whose total probability is at "
        "least this number (now: 0.95)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (now: 0)")
    parser.add_argument("--member", type=int, help="index of a model of the run (now: the best)")
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    loaded = load(parsed.run, member=parsed.member)
    sampling = {name: getattr(parsed, name) for name in ("tokens", "temperature", "top_p", "seed")}
    texts = generate(loaded, parsed.prompt, **sampling)
    for prompt, text in zip(parsed.prompt, texts, strict=True):
        print(prompt + text)


def generate(
    loaded: LoadedModel,
    prompts: Sequence[str],
    *,
    tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[str]:
    """Return a continuation of each prompt.

    Args:
      loaded: Trained language model.
      prompts: Beginnings of texts, possibly empty.
      tokens: Largest number of new tokens.
      temperature: Divisor of the logits. 0 takes the most probable token every time.
      top_p: Sample from the smallest set of most probable tokens whose total probability is at
        least `top_p`.
      seed: Seed of the sampling.
    """
    if not isinstance(loaded.model, LanguageModel):
        raise ValueError(f"RUN must have the task language_modeling; got {loaded.config.task}.")
    _require(len(prompts) >= 1, "prompt", "at least one text", len(prompts))
    _require(1 <= tokens <= MOST_TOKENS, "tokens", f"from 1 to {MOST_TOKENS}", tokens)
    _require(temperature >= 0, "temperature", "at least 0", temperature)
    _require(0 < top_p <= 1, "top-p", "above 0 and at most 1", top_p)
    _require(0 <= seed < 2**32, "seed", "from 0 to 2^32 - 1", seed)
    # In the training data, [END] precedes every text. The tokenizer adds [END] after each prompt.
    # `roll` moves [END] to the beginning.
    encoded = [np.roll(row, 1) for row in encode(loaded.tokenizer, prompts).split()]
    lengths = np.asarray([len(row) for row in encoded])
    padded = np.zeros((len(encoded), round_length(int(lengths.max()))), np.int32)
    for row, ids in zip(padded, encoded, strict=True):
        row[: len(ids)] = ids
    program = nnx.jit(LanguageModel.generate, static_argnames=("new_tokens",))
    found = program(
        loaded.model,
        jnp.asarray(padded),
        jnp.asarray(lengths),
        new_tokens=tokens,
        key=jax.random.key(seed) if temperature else None,
        temperature=temperature or 1.0,
        top_p=top_p,
    )
    return decode(loaded.tokenizer, np.asarray(found.tokens))


def _require(condition: bool, option: str, requirement: str, got: float) -> None:
    """Raise a ValueError that names the option unless the condition is True."""
    if not condition:
        raise ValueError(f"--{option} must be {requirement}; got {got}.")
