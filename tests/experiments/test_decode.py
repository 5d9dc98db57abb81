"""`python -m experiments decode`: translation with and without cached keys and values."""

import jax
import numpy as np
from flax import nnx

from distattn_jax.models import Translator
from experiments.bench import decoding
from experiments.commands import decode

SMALL = "--layers 1 --features 8 --heads 2 --hidden-features 8 --vocabulary 9 --batch 3 --source 4"
SMALL += " --tokens 5 --beams 2 --repeats 1 --dtype float32 --methods relative_position"


def test_translations_with_and_without_a_cache_are_equal():
    config = decode.parse_options(decode.DecodeConfig(), SMALL.split(), program="decode")
    model = decode.make_model(config, "relative_position", nnx.Rngs(0))
    assert isinstance(model, Translator)
    source = jax.random.randint(jax.random.key(0), (3, 4), 3, 9)
    cached, uncached = (
        decoding.decode(*nnx.split(model), source, tokens=5, beam_size=2, cached=cached)
        for cached in (True, False)
    )
    np.testing.assert_array_equal(cached.tokens, uncached.tokens)
    np.testing.assert_array_equal(cached.lengths, 5)
    np.testing.assert_allclose(cached.scores, uncached.scores, rtol=1e-5)


def test_a_line_has_the_tokens_per_second_of_both(capsys):
    decode.main(SMALL.split())
    assert len(capsys.readouterr().out.splitlines()) == 3
