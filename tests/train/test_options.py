"""Options: set on the command line, stored as JSON, compared; mistakes are named in the error."""

import dataclasses
import json
import re

import pytest

from distattn_jax.models import METHODS
from distattn_jax.tasks import ModelConfig, TextClassificationConfig
from distattn_jax.train import OptimizerConfig, Options, option, options
from distattn_jax.train.flags import OTHER_NAMES, make_flag, suggest_option

CONFIG = TextClassificationConfig()


def parse(*arguments):
    return options.parse_options(CONFIG, arguments, program="program")


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        ((), "seeds", 1),  # An empty command line changes nothing.
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
        (("--output.profile",), "output.profile", True),
        (("--methods", "vanilla", "--methods", "adapted"), "methods", ("adapted",)),
    ],
)
def test_a_flag_sets_the_option_of_its_dotted_name_and_no_other(arguments, name, expected):
    changed = parse(*arguments)
    assert changed == options.replace_options(CONFIG, {name: expected})
    value = {option_name: value for option_name, _, value in options.iterate_options(changed)}[name]
    assert (value, type(value)) == (expected, type(expected))


def test_repeated_flags_of_a_repeatable_option_add_their_values():
    @dataclasses.dataclass(frozen=True)
    class Sizes(Options):
        sizes: tuple[int, ...] = option((), "sizes", repeatable=True)

    for arguments in (["--sizes", "1", "2", "--sizes", "3"], ["--sizes", "1", "2", "3"]):
        assert options.parse_options(Sizes(), arguments, program="program") == Sizes((1, 2, 3))


def test_options_that_are_valid_only_together_can_be_set_together():
    changed = parse("--optimizer.accumulate", "7", "--data.batch-size", "21", "--seed", "7")
    assert changed.optimizer == OptimizerConfig(accumulate=7)
    assert (changed.data.batch_size, changed.seed) == (21, 7)


def test_the_options_that_a_command_line_sets_are_listed_by_dotted_name():
    arguments = ["--seeds", "3", "--model.head-features=8", "--model.initial-shape", "-0.5", "a-b"]
    assert options.list_set_options(arguments) == {
        "seeds",
        "model.head_features",
        "model.initial_shape",
    }


def test_help_shows_the_explanation_and_the_present_value_of_every_option(capsys):
    config = options.replace_options(
        CONFIG, {"model.heads": 2, "optimizer.learning_rate": (0.5, 0.25)}
    )
    with pytest.raises(SystemExit) as exit:
        options.parse_options(config, ["--help"], program="program")
    assert exit.value.code == 0
    text = "".join(capsys.readouterr().out.split())  # Line breaks depend on the terminal.
    for name, field, _ in options.iterate_options(config):
        assert make_flag(name) in text
        assert "".join(field.metadata["explanation"].split()) in text
    assert "attentionheads(now:2)" in text
    assert "peaklearningrate;severalvaluesformagrid(now:0.50.25)" in text
    assert "model:Optionsofthesizesandinitialvaluesofthemodel" in text


def test_help_shows_common_options_first_and_describes_each_method_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    usage_and_help, common, methods, experiment, *_ = re.split(r"\n\n(?=\w.*:\n)", text)[1:]
    assert "--help" in usage_and_help
    assert common.startswith("common options:\n  --methods METHOD [METHOD ...]\n")
    assert experiment.startswith("experiment:")
    for name in CONFIG.common_options:
        flag = f"\n  {make_flag(name)} "
        assert text.count(flag) == common.count(flag)
    first, *lines = methods.splitlines()
    assert max(map(len, lines)) <= 80
    assert first == "METHOD is one of:"
    listed = [line.split()[0] for line in lines if not line.startswith("   ")]
    assert listed == [name for name, method in METHODS.items() if not method.has_switches]
    assert "distance_aware, clipped distance as the factor" in methods


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--model.haeds", "8"), ("unknown --model.haeds: did you mean --model.heads?",)),
        (("--learning-rate=1",), ("did you mean --optimizer.learning-rate?",)),
        (("--lr", "1"), ("unknown --lr: did you mean --optimizer.learning-rate?",)),
        (("--batch_size", "1"), ("unknown --batch-size: did you mean --data.batch-size?",)),
        (("--model.seed", "1"), ("unknown --model.seed: did you mean --",)),
        (("--zzz",), ("unknown --zzz: --help lists all options.",)),
        (("--verbose",), ("unknown --verbose: --help lists all options.",)),
        (("vanilla",), ("unexpected 'vanilla': options have the form --name value.",)),
        (("--optimizer.schedule", "step"), ("--optimizer.schedule: ", "'step'", "cosine")),
        (("--methods", "vanilla", "best"), ("--methods: ", "'best'", "distance_aware")),
        (("--methods", "mdg"), ("--methods: got 'mdg'. ", "use the recipe guided_texts")),
        (("--model.heads", "many"), ("--model.heads: ", "int", "'many'")),
        (("--model.heads", "2.5"), ("--model.heads: ", "int", "'2.5'")),
        (("--output.profile", "maybe"), ("--output.profile: ", "true or false", "'maybe'")),
        (("--model.layers", "0"), (" --model.layers must be at least 1; got 0.",)),
        (("--model.dropout-rate", "0", "1"), (" --model.dropout-rate must be below 1; got (0.0,",)),
        (("--epochs", "0"), (" --epochs must be above 0; got 0.0.",)),
        (("--epochs", "inf"), (" --epochs must be finite; got inf.",)),
        (("--optimizer.learning-rate", "1", "nan"), (" --optimizer.learning-rate must be finite",)),
        (
            ("--data.batch-size", "6", "--optimizer.accumulate", "4"),
            ("--data.batch-size (6) must be a multiple of --optimizer.accumulate (4)",),
        ),
        (("--model.implementation", "fast"), (" --model.implementation must be empty or one of ",)),
        (
            ("--model.precision", "16"),
            (" --model.precision must be empty or one of default, high",),
        ),
        (("--seed", "99999999999"), (" --seed must be at most 4294967295; got 99999999999.",)),
        (("--seed", "4294967295", "--seeds", "2"), (" --seed must be at most 4294967294; got",)),
        (
            ("--mesh.process", "0"),
            (" --mesh.coordinator, --mesh.processes and --mesh.process must",),
        ),
        (
            ("--name", "../x"),
            (" --name must be a folder name of printable characters, without / or \\; got '../x'",),
        ),
        (("--name", "a/b"), (" --name must be a folder name",)),
        (("--name", ".."), (" --name must be a folder name",)),
        (("--name", ""), (" --name must be a folder name",)),
        (("--name", "a\nb"), (" --name must be a folder name",)),
        (("--data.batch-size", "99999999"), (" --data.batch-size must be at most 65536",)),
        (("--data.buckets", "100000"), (" --data.buckets must be at most 64",)),
        (("--model.layers", "100000"), (" --model.layers must be at most 1000",)),
    ],
)
def test_the_error_names_what_is_refused_and_what_is_allowed(capsys, arguments, messages):
    with pytest.raises(SystemExit) as exit:
        parse(*arguments)
    assert exit.value.code == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert all(message in text for message in messages), text


def test_every_name_of_another_program_leads_to_an_option():
    known = {name for name, *_ in options.iterate_options(CONFIG)}
    known |= {"model.pretrained", "data.batch_tokens"}
    for option_name, others in OTHER_NAMES.items():
        for other in others:
            assert suggest_option(other, known).rstrip("?").endswith(make_flag(option_name)[2:])


def test_a_config_survives_json():
    config = options.replace_options(
        CONFIG, {"methods": ("vanilla", "adapted"), "model.dropout_rate": (0.0, 0.5), "seed": 3}
    )
    saved = json.loads(json.dumps(options.options_to_dict(config)))
    assert saved["model.dropout_rate"] == [0.0, 0.5]
    assert options.options_from_dict(CONFIG, saved) == config
    assert hash(options.options_from_dict(CONFIG, saved)) == hash(config)


def test_json_with_an_unknown_option_is_refused():
    message = r"unknown option 'model.head': did you mean 'model.heads'"
    with pytest.raises(ValueError, match=message):
        options.options_from_dict(CONFIG, {"model.head": 4})


def test_differences_are_described_with_both_values():
    before = options.options_to_dict(CONFIG)
    model = dataclasses.replace(ModelConfig(), layers=2)
    after = options.options_to_dict(TextClassificationConfig(model=model, seeds=3)) | {"new": 1}
    assert options.describe_differences(before, before) == []
    assert options.describe_differences(before, after) == [
        "model.layers: 1 before, 2 now",
        "new: nothing before, 1 now",
        "seeds: 1 before, 3 now",
    ]


@dataclasses.dataclass(frozen=True)
class Inner(Options):
    """Options of one group."""

    rate: tuple[float, ...] = option((0.5,), "rate", grid=True)
    folder: str = option("here", "folder", changes_result=False)
    distance: int = option(4, "distance", methods=("near", "far"))


@dataclasses.dataclass(frozen=True)
class Outer(Options):
    """Options with a group."""

    size: int = option(1, "size")
    inner: Inner = Inner()


def test_options_declared_without_metadata_change_the_result_of_all_methods_and_form_no_grid():
    metadata = {name: field.metadata for name, field, _ in options.iterate_options(Outer())}
    shown = ("grid", "changes_result", "methods")
    assert [metadata["size"][key] for key in shown] == [False, True, None]
    assert metadata["inner.rate"]["grid"]
    assert metadata["inner.rate"]["explanation"] == "rate; several values form a grid"


def test_result_options_leave_out_those_that_cannot_change_the_result():
    assert options.result_options(Outer()) == {"size": 1, "inner.rate": [0.5], "inner.distance": 4}


@pytest.mark.parametrize(("method", "reads"), [("near", True), ("far", True), ("other", False)])
def test_a_method_reads_the_options_that_name_it_or_no_method(method, reads):
    expected = {"size": 1, "inner.rate": (0.5,), "inner.folder": "here"}
    expected |= {"inner.distance": 4} if reads else {}
    assert options.options_read_by(Outer(), method) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": "3"}, "size must be int; got '3'"),
        ({"size": True}, "size must be int; got True"),
        ({"size": 1.0}, "size must be int; got 1.0"),
        ({"inner.rate": 0.5}, "inner.rate must be a tuple of float; got 0.5"),
        ({"inner.rate": (1, None)}, r"inner.rate must be a tuple of float; got \(1, None\)"),
        ({"inner.rate": ()}, r"inner.rate must be at least one value; got \(\)"),
        ({"inner.folder": None}, "inner.folder must be str; got None"),
    ],
)
def test_a_value_of_another_type_and_an_empty_grid_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        options.replace_options(Outer(), changes)
