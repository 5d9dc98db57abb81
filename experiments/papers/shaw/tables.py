"""Tables 1 to 3 of Shaw et al. 2018, with our results beside the published numbers.

A cell with our results contains BLEU by sacrebleu on the test set: mean ± standard deviation over
seeds.
"""

from collections.abc import Mapping
from typing import Any

from distattn_jax.train.results import Result, group_by_setting, values_by_seed
from experiments.papers import outcomes
from experiments.papers.formatting import EMPTY, NOT_RUN, format_mean, markdown_table
from experiments.papers.shaw.published import LANGUAGES, MULTI30K, TABLE_1, TABLE_2, TABLE_3
from experiments.papers.shaw.settings import (
    ABLATIONS,
    DATA_SETS,
    DISTANCES,
    POSITIONS,
    RELATIVE,
    SIZES,
    TINY,
    experiment_name,
)
from experiments.papers.stored_results import find_option

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
METRIC = "bleu"
COLUMNS = [(data, size) for data in DATA_SETS for size in SIZES]
# Title of the column of the paper in Tables 2 and 3 (section 4.3), which use newstest2013.
DEVELOPMENT_SET = "WMT14 EN-DE, base, newstest2013, ours / published"


def find_result(content: Mapping[str, Any] | None, method: str) -> Result | None:
    """Return the stored result of a method, or None if the method was not run or not scored."""
    run = (content or {}).get("runs", {}).get(method)
    if run is None or not values_by_seed(run["result"], "test", METRIC):
        return None
    return run["result"]


def find_values(
    content: Mapping[str, Any] | None, method: str, metric: str = METRIC
) -> dict[int, float]:
    """Return a metric on the test set by seed, or {} if the method was not run or not scored."""
    result = find_result(content, method)
    return {} if result is None else values_by_seed(result, "test", metric)


def format_cell(content: Mapping[str, Any] | None, method: str, metric: str = METRIC) -> str:
    """Return our result as "mean ± standard deviation", or "not run"."""
    values = find_values(content, method, metric).values()
    return format_mean(metric, values) if values else NOT_RUN


def compare(
    contents: Contents, data: str, size: str, first: str, second: str
) -> outcomes.Outcome | None:
    """Compare the BLEU of two methods by a paired t-test. Return None if a method was not run."""
    content = contents[experiment_name(data, size)]
    return outcomes.compare_results(
        find_result(content, first), find_result(content, second), METRIC
    )


def describe_model(content: Mapping[str, Any] | None, size: str) -> str:
    """Return the name, layers and width of a size of the model, such as "small (3 + 3 x 256)"."""
    runs: Mapping[str, Any] = (content or {}).get("runs", {})
    config: Mapping[str, Any] = next((run["config"] for run in runs.values()), {})
    layers, features = (find_option(config, f"model.{name}") for name in ("layers", "features"))
    return size if layers is None else f"{size} ({layers} + {layers} x {features})"


def positions_table(contents: Contents) -> str:
    """Return Table 1: BLEU with absolute positions, with relative positions, and with both."""
    models = [(language, model) for language in LANGUAGES for model in TABLE_1]
    rows = []
    for method, positions in POSITIONS.items():
        ours = [format_cell(contents[experiment_name(*column)], method) for column in COLUMNS]
        published = [
            f"{NOT_RUN} / {TABLE_1[model].get(method, {}).get(language, EMPTY)}"
            for language, model in models
        ]
        rows.append([positions, *ours, *published])
    header = ["positions", *_column_titles(contents)]
    header += [f"WMT14 {language}, {model}, ours / published" for language, model in models]
    return markdown_table(header, rows)


def differences_table(contents: Contents) -> str:
    """Return a Markdown table of paired t-tests between the rows of Tables 1 and 3."""
    pairs = {
        "relative - absolute": (RELATIVE, "vanilla"),
        "relative and absolute - relative": ("relative_and_absolute", RELATIVE),
        "keys and values - keys only": (RELATIVE, "relative_position_keys"),
        "keys and values - values only": (RELATIVE, "relative_position_values"),
        "keys and values - neither": (RELATIVE, "no_positions"),
    }
    rows = []
    for title, methods in pairs.items():
        tests = [compare(contents, data, size, *methods) for data, size in COLUMNS]
        rows.append([title, *map(outcomes.format_outcome, tests)])
    return markdown_table(["difference in BLEU", *_column_titles(contents)], rows)


def distances_table(contents: Contents) -> str:
    """Return Table 2: BLEU by the clipping distance k, with the small model."""
    rows = []
    for k in DISTANCES:
        cells = [
            format_cell(contents[experiment_name(data, SIZES[0], k)], RELATIVE)
            for data in DATA_SETS
        ]
        rows.append([str(k), *cells, f"{NOT_RUN} / {TABLE_2[k]}"])
    titles = [f"{title}, {SIZES[0]}" for title in DATA_SETS.values()]
    return markdown_table(["k", *titles, DEVELOPMENT_SET], rows)


def ablation_table(contents: Contents) -> str:
    """Return Table 3: BLEU with position vectors of keys, of values, of both, and of neither."""
    rows = []
    for method, (values, keys) in ABLATIONS.items():
        cells = [format_cell(contents[experiment_name(*column)], method) for column in COLUMNS]
        rows.append([values, keys, *cells, f"{NOT_RUN} / {TABLE_3[method]}"])
    header = ["values", "keys", *_column_titles(contents)]
    return markdown_table([*header, DEVELOPMENT_SET], rows)


def _column_titles(contents: Contents) -> list[str]:
    """Return the titles of our columns: data set, size of the model, layers and width."""
    return [
        f"{DATA_SETS[data]}, {describe_model(contents[experiment_name(data, size)], size)}"
        for data, size in COLUMNS
    ]


def others_table(contents: Contents) -> str:
    """Return a table of Transformers on Multi30k that see only the text: ours and published."""
    rows = []
    for size in SIZES:
        content = contents[experiment_name("multi30k", size)]
        for method, positions in POSITIONS.items():
            cells = [format_cell(content, method, name) for name in (METRIC, "bleu_lowercase")]
            model = describe_model(content, size)
            rows.append([f"ours, {positions}", model, *cells, _describe_decoding(content, method)])
    rows += _tiny_rows(contents)
    rows += [list(system) for system in MULTI30K]
    return markdown_table(["system", "model", "BLEU", "BLEU, lower case", "evaluation"], rows)


def _tiny_rows(contents: Contents) -> list[list[str]]:
    """Return one row for each setting of our runs with the recipe of Wu et al. 2021.

    The texts were lower-cased before training, so that there is no BLEU of cased texts.
    """
    rows = []
    for name, place in TINY.items():
        content = contents[name]
        for method, run in (content or {}).get("runs", {}).items():
            for members in group_by_setting(run["result"]):
                about = describe_tiny(run["result"]["members"][members[0]]["setting"], place)
                values = values_by_seed(run["result"], "test", "bleu_lowercase", members).values()
                rows.append(
                    [
                        f"ours, absolute, recipe of Wu et al., {about}",
                        describe_model(content, "tiny"),
                        EMPTY,
                        format_mean("bleu_lowercase", values),
                        _describe_decoding(content, method),
                    ]
                )
    return rows


def describe_tiny(setting: Mapping[str, Any], place: str) -> str:
    """Describe the learning rate and the dropout of a run with the recipe of Wu et al. 2021.

    Args:
      setting: Hyperparameters of a model.
      place: Where dropout is applied, a value of `TINY`.
    """
    return f"rate {setting['learning_rate']:g}, dropout {setting['dropout_rate']:g} {place}"


def _describe_decoding(content: Mapping[str, Any] | None, method: str) -> str:
    """Describe the decoding and scoring of a run, such as "sacrebleu, tokens 13a; beam 4"."""
    about = find_translation(content, method)
    if not about:
        return EMPTY
    fields = dict(part.split(":") for part in about["signatures"][METRIC].split("|"))
    text = f"sacrebleu, tokens {fields['tok']}; beam {about['beam']}"
    return text + (f", mean of {about['average']} checkpoints" if about["average"] else "")


def find_translation(content: Mapping[str, Any] | None, method: str) -> dict[str, Any]:
    """Return the description of the translations of the test set by a run, or {} without any."""
    run = (content or {}).get("runs", {}).get(method, {})
    return run.get("translations", {}).get("test", {})
