"""Fields from the command line and back to JSON; what a person gets wrong is named."""

import dataclasses
import json

import pytest

from distattn_jax.train import Config, ModelConfig, OptimizerConfig
from distattn_jax.train.flags import (
    differences,
    from_dict,
    leaves,
    named,
    parse,
    replace,
    to_dict,
)


def parsed(*arguments):
    return parse(Config(), arguments, program="program")


def refusal(capsys, *arguments):
    """The last line of what is said about arguments that are refused."""
    with pytest.raises(SystemExit) as exit:
        parsed(*arguments)
    assert exit.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_nothing_given_changes_nothing():
    assert parsed() == Config()


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        (("--seeds", "3"), "seeds", 3),
        (("--model.heads", "8"), "model.heads", 8),
        (("--model.head-features", "8"), "model.head_features", 8),
        (("--model.head_features=8",), "model.head_features", 8),
        (("--data.manual-dir=a-b",), "data.manual_dir", "a-b"),
        (("--data.manual-dir", "a-b=c"), "data.manual_dir", "a-b=c"),
        (("--epochs", "2"), "epochs", 2.0),
        (("--optimizer.learning-rate", "1e-3", "1"), "optimizer.learning_rate", (1e-3, 1.0)),
        (("--methods", "vanilla", "adapted"), "methods", ("vanilla", "adapted")),
        (("--model.initial-shape", "-0.5", "2"), "model.initial_shape", (-0.5, 2.0)),
        (("--output.tensorboard", "false"), "output.tensorboard", False),
        (("--output.profile", "True"), "output.profile", True),
    ],
)
def test_a_field_is_set_by_its_dotted_name_and_no_other_is(arguments, name, expected):
    changed = parsed(*arguments)
    assert changed == replace(Config(), {name: expected})
    given = {field: value for field, _, value in leaves(changed)}[name]
    assert (given, type(given)) == (expected, type(expected))


def test_fields_that_only_go_together_can_be_given_together():
    changed = parsed("--optimizer.weight-decay", "0.1", "--optimizer.name", "adamw", "--seed", "7")
    assert changed.optimizer == OptimizerConfig(name="adamw", weight_decay=0.1)
    assert changed.seed == 7


def test_what_a_command_line_sets_is_named_as_the_fields_are():
    arguments = ["--seeds", "3", "--model.head-features=8", "--model.initial-shape", "-0.5", "a-b"]
    assert named(arguments) == {"seeds", "model.head_features", "model.initial_shape"}


def test_help_explains_every_field_and_shows_what_it_is_now(capsys):
    config = replace(Config(), {"model.heads": 2, "optimizer.learning_rate": (0.5, 0.25)})
    with pytest.raises(SystemExit) as exit:
        parse(config, ["--help"], program="program")
    assert exit.value.code == 0
    text = "".join(capsys.readouterr().out.split())  # however its lines are broken
    for name, field, _ in leaves(config):
        assert f"--{name}" in text
        assert "".join(field.metadata["explanation"].split()) in text
    assert "attentionheads(now:2)" in text
    assert "(now:0.50.25)" in text
    assert "model:Howlargethemodelis" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model.haeds", "8"), ("'--model.haeds'", "did you mean 'model.heads'?")),
        (("--learning-rate=1",), ("did you mean 'optimizer.learning_rate'?",)),
        (("--zzz",), ("known are: data.batch_size, ",)),
        (("vanilla",), ("unknown 'vanilla'",)),
        (("--optimizer.name", "sgd"), ("--optimizer.name: ", "'sgd'", "adam", "adamw")),
        (("--methods", "vanilla", "best"), ("--methods: ", "'best'", "distance_aware")),
        (("--model.heads", "many"), ("--model.heads: ", "int", "'many'")),
        (("--model.heads", "2.5"), ("--model.heads: ", "int", "'2.5'")),
        (("--output.profile", "maybe"), ("--output.profile: ", "true or false", "'maybe'")),
        (("--model.layers", "0"), ("model.layers must be at least 1; got 0.",)),
        (("--model.dropout-rate", "0", "1"), ("model.dropout_rate must be below 1; got (0.0, 1",)),
        (("--epochs", "0"), (" epochs must be above 0; got 0.0.",)),
        (
            ("--data.batch-size", "6", "--optimizer.accumulate", "4"),
            ("data.batch_size (6) must be a multiple of optimizer.accumulate (4)",),
        ),
    ],
)
def test_what_is_refused_is_named_with_what_was_wanted(capsys, arguments, said):
    message = refusal(capsys, *arguments)
    for part in said:
        assert part in message


def test_a_configuration_survives_json():
    config = replace(
        Config(), {"methods": ("vanilla", "adapted"), "model.dropout_rate": (0.0, 0.5), "seed": 3}
    )
    saved = json.loads(json.dumps(to_dict(config)))
    assert saved["model.dropout_rate"] == [0.0, 0.5]
    assert from_dict(Config(), saved) == config
    assert hash(from_dict(Config(), saved)) == hash(config)


def test_json_with_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"unknown field 'model.head': did you mean 'model.heads'"):
        from_dict(Config(), {"model.head": 4})


def test_differences_are_named_with_both_values_and_some_are_ignored():
    one = to_dict(Config())
    model = dataclasses.replace(ModelConfig(), layers=2)
    other = to_dict(Config(model=model, seeds=3)) | {"new": 1}
    assert differences(one, one) == []
    assert differences(one, other) == [
        "model.layers: 1 before, 2 now",
        "new: nothing before, 1 now",
        "seeds: 1 before, 3 now",
    ]
    assert differences(one, other, ignoring=("model.", "new")) == ["seeds: 1 before, 3 now"]
