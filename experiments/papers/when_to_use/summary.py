"""Summary of the results on where distance helps: findings and tables."""

from collections.abc import Mapping

from experiments.papers import outcomes
from experiments.papers.formatting import NOT_RUN, method_title
from experiments.papers.statistics import ALPHA
from experiments.papers.stored_results import AnyPath
from experiments.papers.when_to_use import language_models, reviews, tables, tagging
from experiments.papers.when_to_use.settings import (
    ENCODERS,
    EXPERIMENTS,
    LENGTHS,
    LONGER_TRAINED_LENGTH,
    OURS,
    TRAINED_LENGTH,
)
from experiments.papers.when_to_use.tables import Contents


def list_sections(contents: Contents, folder: AnyPath) -> list[str]:
    """Return the headings, texts and tables of the summary as Markdown."""
    return [
        "### Tagging: does the order of words carry the answer?",
        "Accuracy (%) of parts of speech on UD treebanks, and F1 (%) of named entities on WNUT-17, "
        "best in bold.",
        tables.scores_table(contents, tagging.TITLES),
        tables.differences_table(contents, tagging.TITLES, (OURS,)),
        "### Sentiment of film reviews: does the order of methods change with the length?",
        "Accuracy (%) on reviews of IMDB that are cut after 64 to 512 words, best in bold.",
        tables.scores_table(contents, reviews.TITLES),
        tables.differences_table(contents, reviews.TITLES, reviews.BASES),
        f"### Language models: trained on {TRAINED_LENGTH} tokens, tested on longer texts",
        "Perplexity of the test set (lower is better, best in bold). All lengths predict the same "
        f"tokens. Far attention is the share on tokens more than {TRAINED_LENGTH} tokens away.",
        language_models.lengths_table(contents),
        f"### Language models: trained on {LONGER_TRAINED_LENGTH} tokens, with as many tokens in a "
        "batch as above",
        language_models.longer_training_table(contents),
    ]


def list_findings(contents: Contents, folder: AnyPath) -> list[str]:
    """Return sentences that state the main results, composed from our numbers and the t-tests."""
    titles = tagging.TITLES | {name: f"IMDB {title}" for name, title in reviews.TITLES.items()}
    findings = [
        f"**TENER against the Transformer**: on named entities (its own claim): "
        f"{describe_pair(contents, 'wnut17', 'adapted', 'vanilla')}; on parts of speech: "
        f"{_describe_pairs(contents, tagging.PARTS_OF_SPEECH, 'adapted', 'vanilla')}.",
        f"**Transformer against no positions**: "
        f"{_describe_pairs(contents, titles, 'vanilla', 'no_positions')}.",
        f"**DA-Transformer on tagging**: {describe_ours(contents, tagging.TITLES)}.",
        f"**DA-Transformer on film reviews**: {describe_ours(contents, reviews.TITLES)}.",
        f"**Does the order of methods change with the length of reviews?** "
        f"{_capitalize(reviews.describe_order(contents))}.",
        f"**Texts of {LENGTHS[-1]} tokens**: {_describe_growth(contents)}.",
        f"**Training on {LONGER_TRAINED_LENGTH} instead of {TRAINED_LENGTH} tokens**: "
        f"{_describe_trainings(contents)}.",
        f"**Remedies against far attention**, perplexity at {LENGTHS[-1]} tokens minus that of "
        f"DA-Transformer: {_describe_remedies(contents)}.",
        f"**Pruning half of the heads of DA-Transformer**, compared with a random order: "
        f"{_describe_pruning(contents)}.",
    ]
    missing = list(filter(None, (_list_missing(contents, name) for name in EXPERIMENTS)))
    if missing:
        findings.append(f"**Not run**: {'; '.join(missing)}.")
    return [*findings, f"A difference counts where p < {ALPHA:g}, uncorrected for many tests."]


def _capitalize(text: str) -> str:
    """Return the text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def _list_missing(contents: Contents, experiment: str) -> str:
    """Return the title of an experiment with the methods that were not run, or "" if all were."""
    title, methods = EXPERIMENTS[experiment].title, EXPERIMENTS[experiment].methods
    if contents[experiment] is None:
        return f"{title} (all methods)"
    found = [m for m in methods if tables.find_result(contents, experiment, m) is not None]
    for trained, name in language_models.NAMES.items():
        if name == experiment:  # A trained language model counts once it is measured.
            found = language_models.list_measured(contents, trained=trained)
    missing = [method for method in methods if method not in found]
    return f"{title} ({'; '.join(map(method_title, missing))})" if missing else ""


def describe_pair(contents: Contents, experiment: str, first: str, second: str) -> str:
    """Describe the t-test of two methods in one phrase."""
    return _describe_kind(tables.compare(contents, experiment, first, second))


def _describe_kind(outcome: outcomes.Outcome | None) -> str:
    """Describe a t-test in one phrase, such as "better, 0.81 points, p = 0.02"."""
    return NOT_RUN if outcome is None else f"{outcome.kind}, {outcomes.describe(outcome)}"


def describe_ours(contents: Contents, titles: Mapping[str, str]) -> str:
    """Describe the t-tests of DA-Transformer against all other methods in one phrase.

    Args:
      contents: Stored results by experiment.
      titles: Short titles by experiment.
    """
    words = {
        outcomes.BETTER: "better than",
        outcomes.WORSE: "worse than",
        outcomes.UNCLEAR: "not distinguishable from",
    }
    parts = []
    for name, title in titles.items():
        found = {
            method_title(method): tables.compare(contents, name, OURS, method)
            for method in ENCODERS
            if method != OURS
        }
        phrases = [
            f"{words[kind]} {', '.join(names)}"
            for kind, names in outcomes.group_names(found).items()
        ]
        if phrases:
            parts.append(f"{title}: {'; '.join(phrases)}")
    return ". ".join(map(_capitalize, parts)) if parts else NOT_RUN


def _describe_pairs(contents: Contents, titles: Mapping[str, str], first: str, second: str) -> str:
    """Describe the t-tests of two methods on several experiments in one phrase.

    Args:
      contents: Stored results by experiment.
      titles: Short titles by experiment.
      first: Attention variant.
      second: Attention variant that it is compared with.
    """
    found = {title: tables.compare(contents, name, first, second) for name, title in titles.items()}
    return outcomes.describe_outcomes(found)


def _describe_growth(contents: Contents) -> str:
    """Return which methods do not get worse on the longest texts, and by how much others do."""
    kept: list[str] = []
    lost: list[str] = []
    for method in language_models.list_measured(contents):
        outcome = language_models.compare_ends(contents, method)
        if outcome is not None:
            cell = f"{method_title(method)} {language_models.growth(contents, method):.2f}"
            (lost if outcome.kind == outcomes.WORSE else kept).append(cell)
    if not kept and not lost:
        return NOT_RUN
    return (
        f"perplexity, divided by that at {TRAINED_LENGTH} tokens. Not worse: "
        f"{'; '.join(kept) or 'none'}. Worse: {'; '.join(lost) or 'none'}"
    )


def _describe_trainings(contents: Contents) -> str:
    """Describe the t-tests of both trained lengths, by length of the test set."""
    parts = []
    for length in (LONGER_TRAINED_LENGTH, LENGTHS[-1]):
        compared = language_models.compare_trainings(contents, length)
        found = outcomes.group_names({method_title(m): one for m, one in compared.items()})
        if found:
            phrases = [f"{kind} for {'; '.join(names)}" for kind, names in found.items()]
            parts.append(f"At {length} tokens: {', '.join(phrases)}")
    return ". ".join(parts) if parts else f"{NOT_RUN} on the same data"


def _describe_remedies(contents: Contents) -> str:
    """Describe the t-tests of the remedies against DA-Transformer on the longest texts."""
    scores = language_models.find_perplexities(contents, LENGTHS[-1])
    return "; ".join(
        f"{method_title(method)}: "
        f"{_describe_kind(tables.compare_scores('perplexity', scores, method, OURS))}"
        for method in language_models.REMEDIES
        if method != OURS
    )


def _describe_pruning(contents: Contents) -> str:
    """Describe the t-tests of every order of pruning against the random order.

    Experiments with the same outcomes are described together.
    """
    titles: dict[str, list[str]] = {}
    for name, experiment in EXPERIMENTS.items():
        orders = tables.find_pruning(contents, name).get("orders", {})
        found = {
            f"{order} first": tables.compare_pruning(contents, name, order)
            for order in orders
            if order != "random"
        }
        groups = outcomes.group_names(found).items()
        if groups:
            phrase = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups)
            titles.setdefault(phrase, []).append(experiment.title)
    parts = [f"{'; '.join(names)} ({phrase})" for phrase, names in titles.items()]
    return ". ".join(map(_capitalize, parts)) if parts else NOT_RUN
