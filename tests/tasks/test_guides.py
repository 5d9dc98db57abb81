"""Guides by name: each has the target of its name, and the weight of the setting."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import guiding
from distattn_jax.tasks import GUIDES, GuideOptions, PretrainedClassificationConfig
from distattn_jax.train import compose
from distattn_jax.train.members import list_grid_axes
from tests.train.pretrained import PERIOD, SEPARATOR

PATTERNS = [name for name, guide in GUIDES.items() if guide.maps]
OPTIONS = GuideOptions(periods=(PERIOD,), delimiters=(SEPARATOR,))


class Outputs(NamedTuple):
    received: jax.Array | None = None
    weights: jax.Array | None = None


# [CLS] a . b [SEP] c c' . [SEP] and one position of padding. c and c' are parts of one word.
BATCH = {
    "tokens": jnp.asarray([[2, 6, PERIOD, 7, SEPARATOR, 8, 9, PERIOD, SEPARATOR, 0]]),
    "tokens_length": jnp.asarray([9]),
    "words": jnp.asarray([[0, 1, 2, 3, 0, 4, 4, 5, 0, 0]]),
    "heads": jnp.asarray([[0, 3, 1, 0, 0, 5, 5, 4, 0, 0]]),
    "vectors": jnp.asarray([[0, 1, 0, 2, 0, 3, 3, 0, 0, 0]]),
    "word_vectors": jnp.asarray([[0.0, 0], [1, 0], [1, 1], [0, 1]]),
    "pmi_row_of_token": jnp.full(20, -1).at[jnp.asarray([6, 7, 8])].set(jnp.arange(3)),
    "pmi_values": jnp.asarray([[0.0, 1, 2], [1, 0, 0], [2, 0, 0]]),
}
RECEIVED = jnp.asarray(np.random.default_rng(0).random((1, 3, 2, 10)), jnp.float32)
TOKENS, LENGTHS = BATCH["tokens"], BATCH["tokens_length"]
TARGETS = {
    "first": guiding.first_token(TOKENS, LENGTHS),
    "next": guiding.next_token(TOKENS, LENGTHS),
    "previous": guiding.previous_token(TOKENS, LENGTHS),
    "period": guiding.period(TOKENS, LENGTHS, periods=(PERIOD,)),
    "delimiter": guiding.delimiter(TOKENS, LENGTHS, delimiters=(SEPARATOR,)),
    "pmi": guiding.pmi(
        TOKENS, LENGTHS, guiding.PmiTable(BATCH["pmi_row_of_token"], BATCH["pmi_values"])
    ),
    "dependency": guiding.dependency(BATCH["words"], BATCH["heads"], LENGTHS),
    "word_similarity": guiding.word_similarity(BATCH["vectors"], LENGTHS, BATCH["word_vectors"]),
}


def test_the_loss_of_a_pattern_is_0_only_for_its_own_target():
    assert list(TARGETS) == PATTERNS
    for name in PATTERNS:
        ((term, loss),) = GUIDES[name].losses(OPTIONS).items()
        assert term == name
        for other, target in TARGETS.items():
            maps = jnp.broadcast_to(target.weights[:, None, None], (1, 2, 3, 10, 10))
            found = float(loss(Outputs(weights=maps), BATCH)[0])
            assert (found < 1e-6) == (other == name), (name, other)


def test_ag_is_mdg_and_pdg_with_the_scaling_and_layers_of_the_options():
    options = GuideOptions(layers=(1,), scaling="sum", temperature=2.0)
    losses = GUIDES["ag"].losses(options)
    expected = {
        "mdg": guiding.map_discrimination(
            RECEIVED, LENGTHS, layers=(1,), scaling="sum", temperature=2.0
        ),
        "pdg": guiding.pattern_decorrelation(RECEIVED, LENGTHS, layers=(1,), scaling="sum"),
    }
    for name, value in expected.items():
        (alone,) = GUIDES[name].losses(options).values()
        for loss in (losses[name], alone):
            np.testing.assert_array_equal(loss(Outputs(RECEIVED), BATCH), value)


def test_the_weights_of_the_losses_may_be_traced():
    losses = GUIDES["ag"].losses(OPTIONS)

    @jax.jit
    def total(alpha, beta):
        weighted = GUIDES["ag"].weigh(losses, {"alpha": alpha, "beta": beta})
        return compose(lambda *_: jnp.full(1, 5.0), weighted)(Outputs(RECEIVED), BATCH)

    composed = total(jnp.float32(2), jnp.float32(3))
    expected = 5 + 2 * composed.terms["loss/mdg"] + 3 * composed.terms["loss/pdg"]
    np.testing.assert_allclose(composed.total, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["ag", "first"])
def test_the_guided_layer_may_be_traced(name):
    guide = GUIDES[name]
    maps = jnp.asarray(np.random.default_rng(1).random((1, 3, 2, 10, 10)), jnp.float32)
    outputs = Outputs(RECEIVED if guide.received else None, maps if guide.maps else None)

    @jax.vmap
    def losses_of_layer(layer):
        setting = dict.fromkeys(("alpha", "beta", "gamma", "layer"), layer)
        weighted = guide.weigh(guide.losses(OPTIONS), setting, single_layer=True)
        return {term: found.loss(outputs, BATCH) for term, found in weighted.items()}

    found = losses_of_layer(1 + jnp.arange(3.0))
    for layer in range(3):
        options = dataclasses.replace(OPTIONS, layers=(layer,))
        for term, loss in guide.losses(options).items():
            np.testing.assert_allclose(found[term][layer], loss(outputs, BATCH), rtol=1e-6)


def test_patterns_read_attention_maps_and_mdg_and_pdg_the_received_attention():
    assert [name for name, guide in GUIDES.items() if guide.received] == ["ag", "mdg", "pdg"]
    assert {*PATTERNS, "ag", "mdg", "pdg", "none"} == GUIDES.keys()
    assert not any(GUIDES[name].received for name in PATTERNS)
    assert GUIDES["none"].terms == {}


def test_the_weights_of_all_guides_are_axes_of_the_grid():
    weights = {weight for guide in GUIDES.values() for weight in guide.weights}
    assert weights == {"alpha", "beta", "gamma"}
    assert weights < list_grid_axes(PretrainedClassificationConfig()).keys()
