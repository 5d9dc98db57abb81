"""Tables for Figures 3 and 6 of the attention-guiding paper.

Figure 3 varies the guided layer, Figure 6 the share of the training set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.tasks.configs import ALL_LAYERS
from distattn_jax.train.results import group_by_setting, values_by_seed
from experiments.papers import outcomes, stored_results
from experiments.papers.attention_guiding import models
from experiments.papers.comparison_tables import count_pairs, format_test
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    format_mean,
    format_range,
    markdown_table,
    method_title,
    metric_title,
)

BASE = "multinli"  # the experiment that both sweeps vary
SHARES = (20, 40, 60, 80, 100)  # percent of the training set; 100 is the experiment BASE itself
LAYER_GUIDES = ("mdg", "pdg", "ag")
SHARE_GUIDES = ("none", "ag", "mdg", "pdg")
LAYERS = f"{BASE}_layers"  # an experiment with one setting for each guided layer
SWEEPS = (LAYERS, *(f"{BASE}_share_{share}" for share in SHARES[:-1]))

Results = dict[str, dict[Any, Any]]  # guide -> layer, share or experiment -> result


def list_layers(contents: Mapping[str, Any]) -> range:
    """Return the layer numbers of the pre-trained model, which begin at 1.

    The range is empty if neither the base experiment nor the sweep over layers was run.
    """
    found = [content for content in (contents[BASE], contents.get(LAYERS)) if content is not None]
    counts = [content["data"]["pretrained"]["config"]["layers"] for content in found]
    return range(1, max(counts, default=0) + 1)


def group_by_layer(contents: Mapping[str, Any]) -> Results:
    """Return results[guide][layer] of the sweep over guided layers. The first layer is 1."""
    found: Results = {guide: {} for guide in LAYER_GUIDES}
    runs = (contents.get(LAYERS) or {}).get("runs", {})
    for guide in found.keys() & runs.keys():
        result = runs[guide]["result"]
        members = result["members"]
        for indices in group_by_setting(result):
            layer = members[indices[0]]["setting"].get("layer", ALL_LAYERS)
            if layer == ALL_LAYERS or layer + 1 in found[guide]:
                raise ValueError(f"{LAYERS} must have one setting for each layer; got {guide}.")
            found[guide][layer + 1] = {**result, "members": [members[i] for i in indices]}
    return found


def split_layers(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `contents` in which the sweep over layers is split into experiments.

    Each guided layer becomes an experiment with a name such as "multinli_layers, layer 1".
    """
    found = group_by_layer(contents)
    by_layer = {
        f"{LAYERS}, layer {layer}": {
            "runs": {
                guide: {"result": results[layer]}
                for guide, results in found.items()
                if layer in results
            }
        }
        for layer in sorted({layer for results in found.values() for layer in results})
    }
    return {name: content for name, content in contents.items() if name != LAYERS} | by_layer


def group_by_share(contents: Mapping[str, Any]) -> Results:
    """Return results[guide][share], where share is the percentage of the training set that is used.

    Raise a ValueError if the stored share of an experiment differs from the share in its name.
    """
    found: Results = {guide: {} for guide in SHARE_GUIDES}
    for share in SHARES:
        name = BASE if share == 100 else f"{BASE}_share_{share}"
        runs = (contents.get(name) or {}).get("runs", {})
        for guide in SHARE_GUIDES:
            if guide in runs:
                stored = stored_results.find_option(runs[guide]["config"], "data.share")
                stored = 1.0 if stored is None else stored
                if round(100 * stored, 6) != share:
                    raise ValueError(f"{name} must be of {share} %; got data.share {stored}.")
                found[guide][share] = runs[guide]["result"]
    return found


def find_unguided(contents: Mapping[str, Any]) -> Any:
    """Return the result without a guide on the whole training set, or None if it was not run."""
    run = (contents[BASE] or {}).get("runs", {}).get("none")
    return None if run is None else run["result"]


def compare_layers(contents: Mapping[str, Any]) -> dict[str, outcomes.Outcome | None]:
    """Compare guiding of each single layer with the run without a guide, by t-tests.

    Return a dict from names such as "MDG, layer 1" to outcomes.
    """
    none = find_unguided(contents)
    return {
        f"{method_title(guide)}, layer {layer}": outcomes.compare_results(result, none)
        for guide, results in group_by_layer(contents).items()
        for layer, result in sorted(results.items())
    }


def compare_shares(contents: Mapping[str, Any], guide: str) -> dict[str, outcomes.Outcome | None]:
    """Compare runs with and without a guide by a t-test, for every share of the training set.

    Return a dict from shares such as "20 %" to outcomes.
    """
    found = group_by_share(contents)
    return {
        f"{share} %": outcomes.compare_results(result, found["none"].get(share))
        for share, result in found[guide].items()
    }


def layers_table(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table with one row per guided layer.

    A row shows, for every guide, the main test metric and a t-test against the run without a guide.
    """
    found, none, layers = group_by_layer(contents), find_unguided(contents), list_layers(contents)
    if not layers:
        return NOT_RUN_SENTENCE
    plain = NOT_RUN if none is None else _format_criterion(none)
    note = (
        f"Ours, {_name_metric(none)}, MultiNLI, {_name_models(contents, 'layers')}. Without a "
        f"guide: {plain}."
    )
    table = compare_with_none("layer", layers, found, dict.fromkeys(layers, none))
    return "\n\n".join([note, table])


def shares_table(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table with one row per share of the training set.

    A row shows, for every guide, the main test metric and a t-test against the run without a guide.
    """
    found = group_by_share(contents)
    none = found["none"]
    note = (
        f"Ours, {_name_metric(none.get(100))}, MultiNLI, {_name_models(contents, 'share')}. Shares "
        "refer to our training set."
    )
    table = compare_with_none("training set (%)", SHARES, found, none)
    return "\n\n".join([note, table])


def compare_with_none(
    option: str, values: Sequence[Any], results: Results, baseline: Mapping[Any, Any]
) -> str:
    """Return a Markdown table with one row per value of an option.

    A row shows, for every guide, the main test metric and a t-test against the run without a guide.

    Args:
      option: Name of the option, which is the heading of the first column.
      values: Values of the option, one per row.
      results: results[guide][value of the option] is the result of a run.
      baseline: Results without a guide, by value of the option.
    """
    header, pairs = [option], []
    for guide in results:
        title = method_title(guide)
        header += [title] if guide == "none" else [title, "minus no guide", "p"]
    rows = []
    for value in values:
        row = [str(value)]
        for guide, by_value in results.items():
            result, none = by_value.get(value), baseline.get(value)
            row.append(NOT_RUN if result is None else _format_criterion(result))
            if guide == "none":
                continue
            if result is None or none is None:
                row += [NOT_RUN if result is None else EMPTY] * 2
            else:
                criterion = result["criterion"]
                first, second = (values_by_seed(one, "test", criterion) for one in (result, none))
                row += format_test(first, second, criterion)[:2]
                pairs += [count_pairs(first, second)] * (row[-1] != EMPTY)
        rows.append(row)
    return "\n\n".join([markdown_table(header, rows), *([_describe_tests(pairs)] if pairs else [])])


def _describe_tests(pairs: Sequence[int]) -> str:
    """Return a note on the paired t-tests of a table.

    Args:
      pairs: For each test, the number of seeds that it uses.
    """
    return (
        "Means use all seeds of a guide; differences use the seeds that both have. "
        f"{len(pairs)} paired t-tests over {format_range(pairs)} seeds, two-sided; p is not "
        "corrected for the number of tests."
    )


def _name_models(contents: Mapping[str, Any], sweep: str) -> str:
    """Return the names of the pre-trained models of the experiment BASE and of a sweep."""
    names = (name for name in contents if name == BASE or name.startswith(f"{BASE}_{sweep}"))
    return models.join_model_names(contents[name] for name in names)


def _name_metric(result: Any) -> str:
    """Return the printed name of the main test metric of a result, such as "test accuracy (%)"."""
    return f"test {metric_title('accuracy' if result is None else result['criterion'])}"


def _format_criterion(result: Any) -> str:
    """Format the main test metric of a result as "mean ± standard deviation" over seeds."""
    criterion = result["criterion"]
    return format_mean(criterion, values_by_seed(result, "test", criterion).values())
