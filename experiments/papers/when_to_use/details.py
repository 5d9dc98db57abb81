"""Full report on where distance helps: commands, settings, positions, heads, seeds, provenance."""

from experiments.papers import report_sections, stored_results
from experiments.papers.comparison_tables import settings_table
from experiments.papers.formatting import NOT_RUN_SENTENCE
from experiments.papers.when_to_use import language_models, tables, tagging
from experiments.papers.when_to_use.settings import (
    EXPERIMENTS,
    LONGER_TRAINED_LENGTH,
    TRAINED_LENGTH,
)
from experiments.papers.when_to_use.tables import Contents


def list_details(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown parts: commands, data, settings, positions, heads, seeds and provenance.

    Args:
      contents: Results by experiment. The value is None if the experiment was not run.
      folder: Folder of the stored results.
    """
    titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    commands = [one.command(name) for name, one in EXPERIMENTS.items()]
    parts = [
        "### Commands",
        "\n".join(["```bash", *commands, "```"]),
        "### Data",
        report_sections.data_messages(contents, titles) or NOT_RUN_SENTENCE,
    ]
    if not any(contents.values()):
        return parts
    parts.append("### All settings")
    for name, content in contents.items():
        if content is not None:
            results = stored_results.select_results(content, tuple(content["runs"]))
            parts += [f"{name}:", settings_table(results)]
    return [
        *parts,
        "### Tagging: gains over no positions",
        tables.differences_table(contents, tagging.TITLES, ("no_positions",)) or NOT_RUN_SENTENCE,
        *_list_language_models(contents),
        f"### Does a remedy keep attention from far tokens? (trained on {TRAINED_LENGTH} tokens)",
        language_models.remedies_table(contents),
        "### What do heads learn?",
        tables.layers_table(contents),
        "### What does it cost to prune heads of DA-Transformer? (validation set)",
        tables.pruning_table(contents),
        "### Every seed",
        *report_sections.seed_tables(contents),
        "### Runs",
        report_sections.provenance_table(contents, folder, searches=()),
    ]


def _list_language_models(contents: Contents) -> list[str]:
    """Return headings and tables of language models by position, distance and training."""
    parts = []
    for trained in language_models.NAMES:
        parts += [
            f"### Perplexity by position in texts of {language_models.LONGEST} tokens, trained on "
            f"{trained} tokens",
            language_models.positions_table(contents, trained=trained),
            f"### Dilution: how much attention goes to far tokens? Trained on {trained} tokens",
            language_models.far_table(contents, trained=trained),
        ]
    longer, shorter = LONGER_TRAINED_LENGTH, TRAINED_LENGTH
    return [
        *parts,
        f"### Perplexity of models trained on {longer} tokens minus {shorter} tokens, by length",
        language_models.trainings_table(contents),
    ]
