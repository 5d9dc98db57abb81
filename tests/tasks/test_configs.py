"""Configs of the tasks and recipes: each task has only the options that it reads."""

import dataclasses
import re

import pytest

from distattn_jax import tasks
from distattn_jax.models import METHODS
from distattn_jax.tasks import GUIDES, GuidingConfig, ModelConfig, TextClassificationConfig
from distattn_jax.tasks import PretrainedClassificationConfig as FineTuningConfig
from distattn_jax.train import DataConfig, MeshConfig, OptimizerConfig, OutputConfig, options
from distattn_jax.train.flags import make_flag
from distattn_jax.train.members import list_grid_axes, list_members, varied_axes
from experiments.recipes import list_recipes, load_recipe

CONFIGS = {task.config_class.task: task.config_class() for task in tasks.TASKS}


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_a_frozen_value_of_a_known_task(name):
    get_config = load_recipe(name).get_config
    config = get_config()
    assert config == get_config()
    assert hash(config) == hash(get_config())
    for part in (config, config.data, config.model, config.optimizer, config.mesh, config.output):
        first = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, first, getattr(part, first))
    assert type(config) is type(CONFIGS[config.task])
    # The copy is built from the defaults, so that every value is checked again.
    assert options.options_from_dict(type(config)(), options.options_to_dict(config)) == config
    assert config.name == name  # A report finds the recipe by the name of the experiment.


@pytest.mark.parametrize("name", CONFIGS)
def test_options_are_explained_and_where_a_run_is_computed_cannot_change_its_result(name):
    fields = {
        option_name: field for option_name, field, _ in options.iterate_options(CONFIGS[name])
    }
    assert all(field.metadata["explanation"] for field in fields.values())
    names = fields.keys()
    without_effect = names - options.result_options(CONFIGS[name]).keys()
    assert without_effect == {
        option_name
        for option_name in names
        if (
            option_name.startswith(("mesh.", "output.")) and option_name != "output.evaluate_every"
        )  # It decides which parameters are the best.
        or option_name in ("methods", "models_at_once", "steps_at_once")
        or option_name in ("data.directory", "data.manual_dir")
    }


def test_methods_are_attention_variants_or_guides_and_share_no_name():
    assert not METHODS.keys() & GUIDES.keys()
    for name, config in CONFIGS.items():
        methods = {field.name: field for field in dataclasses.fields(config)}["methods"]
        known = GUIDES if name in ("pretrained_classification", "claim_ranking") else METHODS
        unused = {"switched_positions"} if name != "translation" else set()
        assert methods.metadata["choices"] == tuple(name for name in known if name not in unused)


def test_the_axes_of_the_grid_are_the_options_declared_so():
    rates = "optimizer.learning_rate", "model.dropout_rate"
    distance = "model.initial_weight", "model.initial_shape", "model.distance_rate"
    guides = "guiding.alpha", "guiding.beta", "guiding.gamma", "guiding.layer"
    for task, names in {"text_classification": distance, "claim_ranking": guides}.items():
        expected = {name.partition(".")[2]: name for name in (*rates, *names)}
        assert list_grid_axes(CONFIGS[task]) == expected


GRID = {
    "guiding.alpha": (0.1, 0.2),
    "guiding.beta": (0.3, 0.4, 0.5),
    "guiding.gamma": (1.0, 2.0, 3.0, 4.0),
    "guiding.layer": (1, 2),
}
PATTERNS = {name for name, guide in GUIDES.items() if guide.maps}
DISTANCE_AWARE = {
    name
    for name in METHODS
    if name.startswith(("distance_aware", "two_sided")) and name != "two_sided_no_factor"
}
RELATIVE = {
    *("relative_position", "relative_position_keys", "relative_position_values"),
    *("relative_and_absolute", "switched_positions"),
}


OPTIONS_OF_ATTENTION = {
    "model.max_distance": RELATIVE,
    "model.initial_weight": DISTANCE_AWARE,
    "model.local_heads": DISTANCE_AWARE,
    "model.initial_shape": DISTANCE_AWARE,
    "model.distance_rate": DISTANCE_AWARE,
}


@pytest.mark.parametrize(
    ("task", "methods"),
    [
        ("text_classification", OPTIONS_OF_ATTENTION),
        (
            "translation",
            {
                **OPTIONS_OF_ATTENTION,
                "model.shared_tables": RELATIVE,
                "model.key_distance": {"switched_positions"},
                "model.value_distance": {"switched_positions"},
                "model.sinusoids": {"switched_positions"},
            },
        ),
        (
            "pretrained_classification",
            {
                "data.parses": {"dependency"},
                "data.vectors": {"word_similarity"},
                "guiding.alpha": {"ag", "mdg"},
                "guiding.beta": {"ag", "pdg"},
                "guiding.gamma": PATTERNS,
                "guiding.layers": {"ag", "mdg", "pdg", *PATTERNS},
                "guiding.layer": {"ag", "mdg", "pdg", *PATTERNS},
                "guiding.scaling": {"ag", "mdg", "pdg"},
                "guiding.temperature": {"ag", "mdg"},
                "guiding.pmi_tokens": {"pmi"},
            },
        ),
    ],
)
def test_options_of_some_methods_name_the_methods_that_use_them(task, methods):
    found = {
        name: field.metadata["methods"] for name, field, _ in options.iterate_options(CONFIGS[task])
    }
    assert {name: set(value) for name, value in found.items() if value is not None} == methods


@pytest.mark.parametrize(
    ("method", "axes"),
    [
        ("none", ()),
        ("ag", ("alpha", "beta", "layer")),
        ("mdg", ("alpha", "layer")),
        ("pdg", ("beta", "layer")),
        ("dependency", ("gamma", "layer")),
    ],
)
def test_a_guide_varies_only_its_own_weights_and_its_layer(method, axes):
    config = options.replace_options(FineTuningConfig(), GRID).for_method(method)
    assert config.methods == (method,)
    assert set(varied_axes(list_members(config))) == set(axes)


@pytest.mark.parametrize(
    ("method", "axes"), [("vanilla", ()), ("distance_aware", ("initial_weight", "distance_rate"))]
)
def test_only_distance_aware_attention_varies_its_initial_values_and_its_learning_rate(
    method, axes
):
    model = ModelConfig(initial_weight=(0.1, 0.5), distance_rate=(1.0, 2.0), max_distance=3)
    config = TextClassificationConfig(methods=("vanilla", "distance_aware"), model=model)
    assert varied_axes(list_members(config.for_method(method))) == axes
    assert config.for_method(method).model.max_distance == 16  # Only relative_position reads it.
    assert config.for_method("relative_position").model.max_distance == 3


def test_files_and_constants_of_other_guides_take_their_defaults():
    plain = FineTuningConfig(methods=("ag",))
    changes = {"guiding.pmi_tokens": 9, "data.parses": "parses", "data.vectors": "vectors"}
    config = options.replace_options(plain, {**changes, "guiding.scaling": "sum"})
    assert config.for_method("ag") == options.replace_options(plain, {"guiding.scaling": "sum"})
    assert config.for_method("pmi").guiding == GuidingConfig(pmi_tokens=9)
    assert config.for_method("dependency").data.parses == "parses"
    assert config.for_method("word_similarity").data.vectors == "vectors"


REFUSED = {
    "text_classification": (
        *("model.pretrained", "guiding.alpha", "data.parses", "data.share"),
        *("data.sentences", "data.batch_tokens", "optimizer.name", "optimizer.distance_rate"),
        *("mesh.at_once", "task", "label_smoothing"),
    ),
    "news_recommendation": ("data.longest",),
    "pretrained_classification": (
        *("data.min_count", "data.vocabulary", "data.tokenizer"),
        *("model.layers", "model.heads", "model.initial_weight"),
    ),
    "claim_ranking": ("data.sentences",),
    "tagging": ("data.tokenizer", "model.pooling_features"),
    "translation": ("model.embedding_features", "data.vectors", "data.min_count"),
}


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, names in REFUSED.items() for name in names]
)
def test_the_command_line_refuses_an_option_that_means_nothing_to_the_task(task, name, capsys):
    with pytest.raises(SystemExit) as exit:
        options.parse_options(CONFIGS[task], [f"--{name}", "1"], program="program")
    assert exit.value.code == 2
    assert f"error: unknown {make_flag(name)}: " in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"unknown option '{re.escape(name)}'"):
        options.options_from_dict(CONFIGS[task], {name: 1})


# The smallest value of an option, and the options whose smallest value it is.
AT_LEAST = {
    0: {
        DataConfig: ("seed",),
        MeshConfig: ("data",),
        ModelConfig: ("max_distance",),
        OptimizerConfig: ("warmup_steps",),
        OutputConfig: ("evaluate_every", "checkpoint_every"),
        TextClassificationConfig: ("seed", "models_at_once", "steps"),
        tasks.LanguageModelConfig: ("window",),
        tasks.LanguageModelingData: ("validation_tokens", "test_tokens"),
        tasks.TaggingModelConfig: ("spelling_features",),
        tasks.TranslationData: ("batch_tokens",),
    },
    1: {
        DataConfig: ("batch_size", "buckets"),
        GuidingConfig: ("pmi_tokens",),
        MeshConfig: ("sequence", "model"),
        ModelConfig: ("layers", "heads", "pooling_features"),
        OptimizerConfig: ("accumulate",),
        OutputConfig: ("log_every", "keep"),
        TextClassificationConfig: ("seeds",),
        tasks.DocumentData: ("sentences",),
        tasks.TaggingData: ("spelling_bytes",),
        tasks.TextClassificationData: ("longest", "min_count"),
        tasks.TranslationModelConfig: ("heads",),
    },
    2: {tasks.TranslationData: ("longest",)},
    3: {tasks.TextClassificationData: ("vocabulary",)},
}
NON_EMPTY = {
    GuidingConfig: ("alpha", "layer"),
    ModelConfig: ("initial_weight", "distance_rate"),
    OptimizerConfig: ("learning_rate",),
}


@pytest.mark.parametrize(
    ("group", "name", "value", "requirement"),
    [
        *(
            (group, name, least - 1, f"at least {least}")
            for least, groups in AT_LEAST.items()
            for group, names in groups.items()
            for name in names
        ),
        *(
            (group, name, (), "at least one value")
            for group, names in NON_EMPTY.items()
            for name in names
        ),
        (OptimizerConfig, "learning_rate", (1e-3, -1e-3), "at least 0"),
        (OptimizerConfig, "learning_rate", (float("nan"),), "finite"),
        (OptimizerConfig, "schedule", "step", "one of constant, linear, cosine, inverse_square"),
        (OptimizerConfig, "weight_decay", -0.1, "at least 0"),
        (OptimizerConfig, "clip_norm", -1.0, "at least 0"),
        (OptimizerConfig, "b1", 1.0, "in [0, 1)"),
        (OptimizerConfig, "b2", -0.1, "in [0, 1)"),
        (OptimizerConfig, "epsilon", 0.0, "above 0"),
        (TextClassificationConfig, "steps", 2**31, "at most 2147483647"),
        (TextClassificationConfig, "epochs", 0.0, "above 0"),
        (TextClassificationConfig, "epochs", float("inf"), "finite"),
        (TextClassificationConfig, "methods", (), "at least one name"),
        (TextClassificationConfig, "methods", ("vanilla", "ag"), "one of no_positions, vanilla"),
        (tasks.PairClassificationConfig, "methods", ("best",), "one of no_positions, vanilla"),
        (FineTuningConfig, "methods", ("ag", "vanilla"), "one of none, ag, mdg"),
        (tasks.TextClassificationData, "dataset", "snli", "one of nearest, text_files, ag_news"),
        (tasks.TextClassificationData, "tokenizer", "words", "one of word_level, word_piece, byte"),
        (tasks.ClaimRankingData, "share", 0.0, "above 0 and at most 1"),
        (tasks.ClaimRankingData, "share", 1.5, "above 0 and at most 1"),
        (ModelConfig, "features", 7, "even (sines and cosines)"),
        (ModelConfig, "dropout_rate", (0.0, -0.1), "at least 0"),
        (ModelConfig, "dropout_rate", (0.5, 1.0), "below 1"),
        (ModelConfig, "distance_rate", (-1.0,), "at least 0"),
        (ModelConfig, "dtype", "float16", "one of float32, bfloat16"),
        (tasks.PretrainedModelConfig, "dropout_rate", (1.0,), "below 1"),
        (tasks.TranslationModelConfig, "norm", "between", "one of after, before"),
        (tasks.TranslationConfig, "label_smoothing", 1.0, "in [0, 1)"),
        (GuidingConfig, "gamma", (-1.0,), "at least 0"),
        (GuidingConfig, "layers", (1, 1), "different ones"),
        (GuidingConfig, "layer", (1, 1), "-1 alone, or different layers"),
        (GuidingConfig, "layer", (-1, 1), "-1 alone, or different layers"),
        (GuidingConfig, "layer", (0, 1), "-1 or from 1 on, because layers count from 1"),
        (GuidingConfig, "layers", (0,), "from 1 on, because layers count from 1"),
        (GuidingConfig, "scaling", "max", "one of mean, sum"),
        (GuidingConfig, "temperature", 0.0, "above 0"),
    ],
)
def test_the_error_names_the_option_its_value_and_what_is_required(group, name, value, requirement):
    with pytest.raises(ValueError, match=rf"^{name} must be {re.escape(requirement)}") as error:
        group(**{name: value})
    shown = value[-1] if name == "methods" and value else value
    assert str(error.value).endswith(f"; got {shown!r}.")


@pytest.mark.parametrize(
    "name", [name for name, config in CONFIGS.items() if hasattr(config.model, "layers")]
)
def test_a_hundred_thousand_layers_are_refused_as_a_typing_error(name):
    with pytest.raises(ValueError, match=r"model.layers must be at most 1000; got 100000"):
        options.replace_options(CONFIGS[name], {"model.layers": 100_000})


def test_a_single_layer_cannot_be_combined_with_several_layers():
    with pytest.raises(ValueError, match=r"^layer must be -1 where layers are given"):
        GuidingConfig(layers=(1,), layer=(2,))


@pytest.mark.parametrize("task", ["text_classification", "document_classification", "translation"])
def test_the_devices_of_a_mesh_have_equally_many_heads(task):
    with pytest.raises(ValueError, match=r"model.heads \(6\) must be a multiple of mesh.model"):
        options.replace_options(CONFIGS[task], {"model.heads": 6, "mesh.model": 4})
    options.replace_options(CONFIGS[task], {"model.heads": 8, "mesh.model": 4})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_group_of_options_has_at_most_two_base_classes_with_options(name):
    config = CONFIGS[name]
    for group in (config, config.data, config.model):
        levels = [base for base in type(group).mro() if dataclasses.is_dataclass(base)]
        assert len(levels) <= 3, levels


@pytest.mark.parametrize(
    "fields",
    [
        {"coordinator": "host:1"},
        {"coordinator": "host:1", "processes": 2},
        {"processes": 2, "process": 0},
        {"process": 0},
    ],
)
def test_the_options_of_several_processes_are_given_together(fields):
    with pytest.raises(ValueError, match=r"mesh.coordinator, .* and mesh.process must be given"):
        TextClassificationConfig(mesh=MeshConfig(**fields))
    TextClassificationConfig(mesh=MeshConfig(coordinator="host:1", processes=2, process=0))
