"""Measure the best models of a run on one split of its data."""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from distattn_jax import sharding
from distattn_jax.models import METHODS
from distattn_jax.models.beam_search import BEAM_SIZE, LENGTH_PENALTY
from distattn_jax.tasks import Translation, load_config, read_split
from distattn_jax.tasks.decoding import read_sentences, translate_sentences_with_models
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train import Config, Member, Run, RunError, evaluate
from distattn_jax.train.members import list_members, varied_axes
from distattn_jax.train.options import describe_differences, parse_options, result_options
from distattn_jax.train.progress import show_elapsed
from distattn_jax.train.results import select_members
from distattn_jax.train.state import model_graph
from experiments.commands._json import add_json_flag, keep_output_for_json, print_json
from experiments.commands.train import enable_compilation_cache
from experiments.papers import translations
from experiments.papers.formatting import (
    PERCENT_METRICS,
    format_value,
    markdown_table,
    metric_title,
)

MODELS_AT_ONCE = 8  # models that translate side by side


def main(arguments: Sequence[str]) -> None:
    """Run `evaluate RUN [--split NAME] [--average N] [--json] [--option value ...]`."""
    parser = make_parser()
    parsed, flags = parser.parse_known_args(arguments)
    saved = load_config(parsed.run)
    config = parse_options(saved, flags, program="python -m experiments evaluate RUN")
    changed = describe_differences(result_options(saved), result_options(config))
    if changed:
        raise RunError(
            "the options of a trained run cannot be changed; got:\n  " + "\n  ".join(changed)
        )
    if config.task != "translation" and (
        parsed.stored or parsed.beam is not None or parsed.length_penalty is not None
    ):
        raise RunError(
            "--beam, --length-penalty and --stored need a run of the task translation; "
            f"{parsed.run} has the task {config.task}."
        )
    with keep_output_for_json(parsed.json):
        content = evaluate_run(parsed, config, say=print if not parsed.json else lambda _: None)
    if parsed.json:
        print_json(content)


def evaluate_run(
    options: argparse.Namespace, config: Config, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the models of a run, and return the results for a JSON document.

    Args:
      options: Options of the command line.
      config: Config of the run.
      say: Function that prints a part of the results, as soon as it is known.
    """
    run, split = Run(epath.Path(options.run)), options.split
    content: dict[str, Any] = {"run": options.run, "task": config.task, "split": split}
    if options.stored:
        about = translations.score_translations(run, split)
        say(format_scores(about, config))
        return {**content, "translations": about}
    enable_compilation_cache()
    task = load_task(options.run, config)
    params = load_parameters(options.run, task, average=options.average)
    table = read_split(task, split)
    metrics = evaluate(task, params, table, sharding.make_mesh(1, 1))
    members, result = list_members(config), run.result
    say(f"{options.run} on {len(table)} examples of {split}:\n")
    say(format_metrics(metrics, members))
    chosen = None if result is None else select_members(result)
    axes = varied_axes(members)
    if chosen is not None and axes:
        best = members[chosen[0]].setting
        values = ", ".join(f"{axis} {best[axis]}" for axis in axes)
        say(f"\nBest on the validation set: {values}.")
    content |= {"examples": len(table), "models": list_metrics(metrics, members, chosen)}
    if isinstance(task, Translation):
        translate_split(run, task, params, options)
        text, content["translations"] = describe_scores(run, split, config)
        say(f"\n{text}")
    return content


def list_metrics(
    metrics: Mapping[str, np.ndarray], members: Sequence[Member], chosen: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Return the metrics of every model, for a JSON document.

    Args:
      metrics: Dict from the name of each metric to its values, one for each model.
      members: Seed and hyperparameters of every model.
      chosen: Indices of the models with the hyperparameters that are best on the validation set.
        None if the run is not finished.
    """
    return [
        {
            "member": i,
            "seed": member.seed,
            "setting": member.setting,
            "chosen": None if chosen is None else i in chosen,
            "metrics": {name: values[i] for name, values in metrics.items()},
        }
        for i, member in enumerate(members)
    ]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, without the options of the run."""
    parser = argparse.ArgumentParser(prog="python -m experiments evaluate", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument(
        "--split",
        default="test",
        help="train, validation, test, or another split of the data set, e.g. test_mismatched of "
        "multinli (now: test)",
    )
    add_average_flag(parser)
    add_decoding_flags(parser)
    parser.add_argument(
        "--stored",
        action="store_true",
        help="translation: compute BLEU and chrF of the stored translations, and nothing else",
    )
    add_json_flag(parser)
    return parser


def translate_split(run: Run, task: Translation, params: Any, options: argparse.Namespace) -> None:
    """Translate a split with the models of every seed, and store the translations in the run.

    If the run has a hyperparameter grid, only the models with the best hyperparameters translate.
    There is one exception: if the grid compares kinds of positions (`Method.has_switches`), all
    models translate.

    Args:
      run: Folder of the run.
      task: Task of the run.
      params: Parameters of all models, with a leading axis over models.
      options: Split, beam, length penalty and average, as on the command line.
    """
    members, result = list_members(task.config), run.result
    compared = METHODS[task.config.method].has_switches
    if result is None and varied_axes(members) and not compared:
        raise RunError(
            f"{run.path} is not finished, so its best hyperparameters are unknown. Train it to the "
            "end, then evaluate it again."
        )
    chosen = range(len(members)) if result is None or compared else select_members(result)
    sources, references = read_sentences(task, options.split)
    search = decoding_options(options)
    found: dict[int, list[str]] = {}
    start = time.monotonic()
    for first in range(0, len(chosen), MODELS_AT_ONCE):
        part = np.asarray(chosen[first : first + MODELS_AT_ONCE])
        own = jax.tree.map(lambda leaf, part=part: leaf[part], params)
        models = "1 model" if len(part) == 1 else f"{len(part)} models"
        with show_elapsed(f"translating {len(sources)} sentences with {models}"):
            lines = translate_sentences_with_models(
                model_graph(task), own, task.tokenizer, sources, **search
            )
        found |= dict(zip(part.tolist(), lines, strict=True))
    if message := describe_empty([line for lines in found.values() for line in lines]):
        print(message, file=sys.stderr)
    about = {
        "sentences": len(sources),
        "beam": search["beam_size"],
        "length_penalty": search["length_penalty"],
        "average": options.average,
        "seconds": round(time.monotonic() - start, 1),
        "device": jax.devices()[0].device_kind,
        "members": [
            {
                "member": i,
                "seed": members[i].seed,
                "step": translations.find_step(result, i, options.average),
            }
            for i in chosen
        ],
    }
    translations.store_translations(run, options.split, found, references, about)


def describe_empty(lines: Sequence[str]) -> str:
    """Return a warning about empty translations, or "" if at most half of them are empty."""
    empty = sum(not line for line in lines)
    if 2 * empty <= len(lines):
        return ""
    return (
        f"warning: {empty:,} of {len(lines):,} translations are empty. A translator that is hardly "
        "trained predicts the end token alone: train it for more steps."
    )


def describe_scores(run: Run, split: str, config: Config) -> tuple[str, dict[str, Any] | None]:
    """Score stored translations. Return the scores as text, and for a JSON document.

    If sacrebleu is not installed, the text says how to install it and score the translations later,
    and the second value is None.

    Args:
      run: Folder of the run.
      split: Name of the split.
      config: Config of the run.
    """
    try:
        about = translations.score_translations(run, split)
        return format_scores(about, config), about
    except translations.MissingPackageError as error:
        return (
            f"The translations are stored in {run.path / translations.FOLDER}. {error} "
            "Then score them, here or elsewhere, with --stored."
        ), None


def format_scores(about: Mapping[str, Any], config: Config) -> str:
    """Return a Markdown table of BLEU and chrF of every model, and the signatures of sacrebleu.

    Args:
      about: Description of scored translations, from `score_translations`.
      config: Config of the run.
    """
    members = list_members(config)
    scored = about["members"]
    columns = {
        metric_title(name): np.asarray([member["scores"][name] for member in scored])
        for name in about["signatures"]
    }
    average = about["average"]
    parameters = f"mean of the last {average} checkpoints" if average else "best checkpoint"
    return "\n".join(
        [
            f"Translations of {about['sentences']} sentences, beam {about['beam']}, length penalty "
            f"{about['length_penalty']}, {parameters}:",
            "",
            format_metrics(columns, [members[member["member"]] for member in scored], digits=2),
            "",
            *(f"{metric_title(name)}: {text}" for name, text in about["signatures"].items()),
        ]
    )


def add_average_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--average` of commands that use a trained model."""
    parser.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="use the mean of the parameters of the last N checkpoints (now: the parameters that "
        "are best on the validation set)",
    )


def add_decoding_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags `--beam` and `--length-penalty` of commands that translate."""
    parser.add_argument(
        "--beam", type=int, metavar="N", help=f"hypotheses of the beam search (now: {BEAM_SIZE})"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help=f"exponent of the length penalty of the beam search (now: {LENGTH_PENALTY})",
    )


def decoding_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `translate_tokens`, from the command line or the defaults."""
    beam, penalty = parsed.beam, parsed.length_penalty
    return {
        "beam_size": BEAM_SIZE if beam is None else beam,
        "length_penalty": LENGTH_PENALTY if penalty is None else penalty,
    }


def format_metrics(
    metrics: Mapping[str, np.ndarray], members: Sequence[Member], *, digits: int = 4
) -> str:
    """Return a Markdown table of the metrics of all models of a run.

    Each model has a row with its seed, the hyperparameters that differ between models, and the
    metrics. If several models have equal hyperparameters, a row with their mean follows them.
    Accuracies and other shares are percentages, as in reports.

    Args:
      metrics: Dict from the name of each metric to its values, one for each model.
      members: Seed and hyperparameters of every model. Models with equal hyperparameters are
        adjacent.
      digits: Number of decimals. Percentages always have two.
    """
    axes = varied_axes(list(members))
    rows = []

    def add_row(title: str, member: Member, models: list[int]) -> None:
        setting = [str(member.setting[axis]) for axis in axes]
        means = {name: column[models].mean() for name, column in metrics.items()}
        cells = [
            format_value(name, mean) if name in PERCENT_METRICS else f"{mean:.{digits}f}"
            for name, mean in means.items()
        ]
        rows.append([title, *setting, *cells])

    for _, group in itertools.groupby(range(len(members)), lambda i: members[i].setting):
        models = list(group)
        for i in models:
            add_row(str(members[i].seed), members[i], [i])
        if len(models) > 1:
            add_row("mean", members[models[0]], models)
    return markdown_table(["seed", *axes, *map(metric_title, metrics)], rows)
