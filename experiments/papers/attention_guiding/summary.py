"""Summary of our results on the attention-guiding paper: findings, and one table for each claim."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.tasks.guides import GUIDES
from experiments.papers import outcomes, report_sections, stored_results
from experiments.papers.attention_guiding import costs, models, repeated_runs, sweeps, tables
from experiments.papers.attention_guiding.head_table import head_table
from experiments.papers.attention_guiding.published import DATA_SIZES
from experiments.papers.formatting import method_title, metric_title
from experiments.papers.statistics import ALPHA

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run


def list_sections(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return the headings, texts and tables of the summary: one table for each claim."""
    titles, speed = models.DATA_TITLES, stored_results.read_results("guiding_speed", folder)
    return [
        "### Does guiding help? (Tables 1 to 3)",
        "Test set, mean ± standard deviation over seeds; differences in points.",
        tables.guides_summary(contents, titles),
        "### Does it help with less training data? (Figure 6)",
        sweeps.shares_table(contents).split("\n\n")[1],
        "### Does it change the heads? (Figures 4 and 5)",
        head_table(contents["multinli"], with_note=False),
        "### What does it cost, relative to no guide? (Table 4)",
        costs.costs_summary(speed, contents, titles),
    ]


def list_findings(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return sentences that state the main results, composed from the outcomes of the t-tests."""
    findings = []
    for data, title in models.DATA_TITLES.items():
        if contents[data] is not None:
            findings.append(_describe_guides(contents, data, title))
            findings += _describe_repetitions(contents, data, title)
    layers = sweeps.compare_layers(contents)
    described = outcomes.describe_outcomes(layers, name_unclear=False)
    findings.append(f"**One guided layer against no guide** (Figure 3): {described}.")
    shares = [
        f"{method_title(guide)} "
        + outcomes.describe_outcomes(sweeps.compare_shares(contents, guide), name_unclear=False)
        for guide in sweeps.SHARE_GUIDES
        if guide != "none"
    ]
    findings.append(
        f"**Against no guide on shares of the training set** (Figure 6): {'; '.join(shares)}."
    )
    run = {data: t for data, t in models.DATA_TITLES.items() if contents[data] is not None}
    rows = report_sections.describe_training_rows(contents, run, DATA_SIZES)
    if rows:
        findings.append(f"**Training rows**, ours / published: {rows}.")
    missing = [title for data, title in models.DATA_TITLES.items() if contents[data] is None]
    if missing:
        findings.append(f"**Not run**: {', '.join(missing)}.")
    return [*findings, f"A difference counts where p < {ALPHA:g}, uncorrected for many tests."]


def _describe_guides(contents: Contents, data: str, title: str) -> str:
    """Return a sentence about the t-tests of each guide against the run without a guide."""
    content = contents[data]
    found = {
        method_title(guide): tables.compare(content, guide)
        for guide in GUIDES
        if guide in content["runs"] and guide != "none"
    }
    described = outcomes.describe_outcomes(found)
    criterion = metric_title(tables.find_criterion(content), unit=False)
    return (
        f"**{title}** ({models.model_name(content)}), {criterion} of every guide against no guide: "
        f"{described}. "
        f"Detectable differences: {outcomes.detectable_range(list(found.values()))}."
    )


def _describe_repetitions(contents: Contents, data: str, title: str) -> list[str]:
    """Return a list with one text about the repeated runs, or [] if no run was repeated."""
    found = repeated_runs.compare_means(contents, data)
    if not found:
        return []
    tests = [f"{method_title(guide)} {outcomes.describe(test)}" for guide, test in found.items()]
    runs, lowest, highest, spread = repeated_runs.describe_spread(contents, data)
    return [
        f"**{title}, {runs} runs of each seed**, averaged, against no guide: {'; '.join(tests)}. "
        f"Without a guide these runs have means of {lowest} to {highest}; the first run is in the "
        f"table below. A single seed differs by up to {spread} between runs."
    ]
