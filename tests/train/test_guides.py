"""Guides by name: each asks what its name says, and weighs what the setting says."""

import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from distattn_jax import guiding
from distattn_jax.models import METHODS
from distattn_jax.train import (
    GUIDES,
    Config,
    GuidingConfig,
    ModelConfig,
    OutputConfig,
    RunError,
    compose,
    load_config,
    open_run,
)
from distattn_jax.train.flags import to_dict
from distattn_jax.train.guides import Aim
from distattn_jax.train.members import AXES, Setting, members_of, varied, with_setting
from distattn_jax.train.tasks import Prepared
from tests.train import tiny
from tests.train.pretrained import PERIOD, SEPARATOR

RIVALS = [name for name, guide in GUIDES.items() if guide.maps]
AIM = Aim(periods=(PERIOD,), delimiters=(SEPARATOR,))
GRID = GuidingConfig(alpha=(0.1, 0.2), beta=(0.3, 0.4, 0.5), gamma=(1.0, 2.0, 3.0, 4.0))


class Outputs(NamedTuple):
    received: jax.Array | None = None
    weights: jax.Array | None = None


# [CLS] a . b [SEP] c c' . [SEP], and one position of padding: c and c' are one word.
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


def test_a_guide_is_content_with_its_own_target_and_with_no_other():
    assert list(TARGETS) == RIVALS
    for name in RIVALS:
        ((term, loss),) = GUIDES[name].of(AIM).items()
        assert term == name
        for other, target in TARGETS.items():
            maps = jnp.broadcast_to(target.weights[:, None, None], (1, 2, 3, 10, 10))
            found = float(loss(Outputs(weights=maps), BATCH)[0])
            assert (found < 1e-6) == (other == name), (name, other)


def test_ag_is_mdg_and_pdg_in_the_scaling_and_layers_of_the_aim():
    received = jnp.asarray(np.random.default_rng(0).random((1, 3, 2, 10)))
    aim = Aim(layers=(1,), scaling="sum", temperature=2.0)
    losses = GUIDES["ag"].of(aim)
    expected = {
        "mdg": guiding.map_discrimination(
            received, LENGTHS, layers=(1,), scaling="sum", temperature=2.0
        ),
        "pdg": guiding.pattern_decorrelation(received, LENGTHS, layers=(1,), scaling="sum"),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(losses[name](Outputs(received), BATCH), value)
        (alone,) = GUIDES[name].of(aim).values()
        np.testing.assert_array_equal(alone(Outputs(received), BATCH), value)


def test_weights_are_numbers_of_a_setting_and_may_be_traced():
    received = jnp.asarray(np.random.default_rng(0).random((1, 3, 2, 10)), jnp.float32)
    losses = GUIDES["ag"].of(AIM)

    @jax.jit
    def total(alpha, beta):
        none = jnp.zeros(())
        setting = Setting(**{**dict.fromkeys(Setting._fields, none), "alpha": alpha, "beta": beta})
        task = lambda outputs, batch: jnp.full(1, 5.0)  # noqa: E731
        return compose(task, GUIDES["ag"].weighted(losses, setting))(Outputs(received), BATCH)

    composed = total(jnp.float32(2), jnp.float32(3))
    expected = 5 + 2 * composed.terms["loss/mdg"] + 3 * composed.terms["loss/pdg"]
    np.testing.assert_allclose(composed.total, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["ag", "first"])
def test_one_layer_may_be_a_number_of_a_setting(name):
    draw, guide = np.random.default_rng(0), GUIDES[name]
    outputs = Outputs(
        received=jnp.asarray(draw.random((1, 3, 2, 10)), jnp.float32) if guide.received else None,
        weights=jnp.asarray(draw.random((1, 3, 2, 10, 10)), jnp.float32) if guide.maps else None,
    )

    @jax.vmap
    def of_layer(layer):
        setting = Setting(*[layer] * len(Setting._fields))
        guides = guide.weighted(guide.of(AIM), setting, one_layer=True)
        return {term: found.loss(outputs, BATCH) for term, found in guides.items()}

    found = of_layer(jnp.arange(3.0))
    for layer in range(3):
        for term, loss in guide.of(dataclasses.replace(AIM, layers=(layer,))).items():
            np.testing.assert_allclose(found[term][layer], loss(outputs, BATCH), rtol=1e-6)


def test_only_rivals_look_at_maps_and_none_at_nothing():
    assert [name for name, guide in GUIDES.items() if guide.received] == ["ag", "mdg", "pdg"]
    assert GUIDES["none"].terms == {}
    assert not GUIDES["none"].maps
    assert {w for guide in GUIDES.values() for w in guide.weights} <= set(AXES)


def test_attentions_and_guides_share_no_name():
    assert not METHODS.keys() & GUIDES.keys()


@pytest.mark.parametrize(
    ("method", "axes"),
    [
        ("none", ()),
        ("ag", ("alpha", "beta")),
        ("mdg", ("alpha",)),
        ("pdg", ("beta",)),
        ("dependency", ("gamma",)),
        ("vanilla", ()),
        ("distance_aware", ("initial_weight",)),
    ],
)
def test_settings_that_a_method_does_not_have_are_one(method, axes):
    model = ModelConfig(initial_weight=(0.1, 0.5))
    config = Config(methods=("ag", "vanilla"), model=model, guiding=GRID).of(method)
    assert config.methods == (method,)
    assert varied(members_of(config)) == axes


def test_a_setting_of_before_there_were_guides_changes_nothing_else():
    config = Config(guiding=GRID)
    old = {"learning_rate": 0.5, "distance_rate": 1.0, "dropout_rate": 0.0}
    found = with_setting(config, old)
    assert found.optimizer.learning_rate == (0.5,)
    assert found.guiding == GRID


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"alpha": ()}, "alpha must be at least one value"),
        ({"gamma": (-1.0,)}, "gamma must be at least 0"),
        ({"layers": (1, 1)}, "layers must be different ones"),
        ({"layer": (0, 0)}, "layer must be -1 alone, or different layers"),
        ({"layer": (-1, 0)}, "layer must be -1 alone, or different layers"),
        ({"layers": (1,), "layer": (0,)}, "layer must be -1 where layers are given"),
        ({"scaling": "max"}, "scaling must be one of mean, sum"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"pmi_tokens": 0}, "pmi_tokens must be at least 1"),
    ],
)
def test_a_bad_value_is_named(fields, wanted):
    with pytest.raises(ValueError, match=f"^{wanted}"):
        dataclasses.replace(GRID, **fields)


def test_a_run_of_before_there_were_guides_is_loaded_and_goes_on(tmp_path):
    config = Config(name="old", methods=("vanilla",), output=OutputConfig(directory=str(tmp_path)))
    new = ("guiding.", "data.share", "data.parses", "model.pretrained", "model.remat")
    saved = {name: value for name, value in to_dict(config).items() if not name.startswith(new)}
    folder = tmp_path / "old" / "vanilla"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(saved))
    assert load_config(folder) == config
    prepared = Prepared((), tiny.TOKENIZER, tables={}, arguments={}, about={})
    assert open_run(config, prepared).path == epath.Path(folder)
    other = dataclasses.replace(config, guiding=GRID)
    with pytest.raises(RunError, match=r"guiding.alpha: \[0.01\] before, \[0.1, 0.2\] now"):
        open_run(other, prepared)


def test_a_run_does_not_go_on_with_other_weights_or_other_data(tmp_path):
    config = Config(name="one", methods=("vanilla",), output=OutputConfig(directory=str(tmp_path)))

    def opened(**about):
        return open_run(config, Prepared((), tiny.TOKENIZER, tables={}, arguments={}, about=about))

    opened(rows=3)  # as long ago
    opened(raw_files="a", pretrained={"digest": "b"})
    opened(raw_files="a", pretrained={"digest": "b"})
    with pytest.raises(RunError, match="pre-trained weights: b before, c now"):
        opened(raw_files="a", pretrained={"digest": "c"})
    with pytest.raises(RunError, match="raw files of the data: a before, d now"):
        opened(raw_files="d", pretrained={"digest": "b"})
