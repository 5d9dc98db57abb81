"""Store the translations of a run as files, and score them with BLEU and chrF of sacrebleu.

`python -m experiments evaluate RUN` writes these files to `RUN/translations`:

- `{split}_model_{i}.txt`: translations of a split by the model with index i, one on each line.
- `{split}_reference.txt`: references, one on each line.
- `{split}.json`: description of the translations (beam size, models and so on) and their scores.

Scoring reads only these files. It can therefore run on another machine.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from distattn_jax.data.files import DataError, read_text
from distattn_jax.train import Run, RunError
from distattn_jax.train.run_files import read_json, write_atomically

FOLDER = "translations"


def store_translations(
    run: Run,
    split: str,
    translations: Mapping[int, Sequence[str]],
    references: Sequence[str],
    about: Mapping[str, Any],
) -> None:
    """Store translations of a split in a run. Earlier translations of the split are replaced.

    Args:
      run: Folder of the run.
      split: Name of the split.
      translations: Dict from the index of a model in the run to its translations of all sentences.
      references: References of all sentences.
      about: Description of the translations. The entry `members` lists the index, the seed and the
        step of every model, see `find_step`.
    """
    folder = run.path / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    description = folder / f"{split}.json"
    # The description is written last, so that a folder with a description is complete.
    description.unlink(missing_ok=True)
    for path in list(folder.iterdir()):
        if path.name.startswith(f"{split}_model_"):
            path.unlink()
    write_atomically(folder / f"{split}_reference.txt", _join_lines(references))
    for i, lines in translations.items():
        write_atomically(folder / f"{split}_model_{i}.txt", _join_lines(lines))
    write_atomically(description, json.dumps(about, indent=1) + "\n")


def score_translations(run: Run, split: str) -> dict[str, Any]:
    """Score the stored translations of a split, and store the scores in `{split}.json`.

    Returns:
      Content of `{split}.json`: the description of the translations and their scores.

    Raises:
      RunError: The run has no translations of this split, or sacrebleu is not installed.
      DataError: A file is missing, or has another number of lines than the references.
    """
    description = run.path / FOLDER / f"{split}.json"
    about = read_json(description)
    if about is None:
        raise RunError(
            f"{run.path} holds no translations of the split {split!r}: `python -m experiments "
            f"evaluate {run.path} --split {split}` makes them."
        )
    references = _read_lines(run.path / FOLDER / f"{split}_reference.txt")
    for member in about["members"]:
        path = run.path / FOLDER / f"{split}_model_{member['member']}.txt"
        hypotheses = _read_lines(path)
        if len(hypotheses) != len(references):
            raise DataError(
                f"{path}: must have {len(references)} lines, one for each reference; "
                f"got {len(hypotheses)}. Evaluate the run again."
            )
        member["scores"], about["signatures"] = compute_scores(hypotheses, references)
    write_atomically(description, json.dumps(about, indent=1) + "\n")
    return about


def compute_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return BLEU, BLEU of the lower-cased texts and chrF, and the sacrebleu signature of each.

    Args:
      hypotheses: Translations.
      references: References, one for each translation.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF  # An optional dependency.
    except ImportError:
        raise MissingPackageError(
            "BLEU and chrF need the package sacrebleu: pip install '.[experiments]'."
        ) from None
    metrics = {"bleu": BLEU(), "bleu_lowercase": BLEU(lowercase=True), "chrf": CHRF()}
    scores = {
        name: metric.corpus_score(list(hypotheses), [list(references)]).score
        for name, metric in metrics.items()
    }
    return scores, {name: str(metric.get_signature()) for name, metric in metrics.items()}


class MissingPackageError(RunError):
    """Raised if an optional package is not installed."""


def add_scores(run: Run) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the result of a run with the scores of its translations, and their descriptions.

    The scores of outdated translations are left out. Translations are outdated if they were made
    before the end of the run, or by parameters of another step. Evaluate the run again to replace
    them.

    Args:
      run: Folder of a run.

    Returns:
      Two dicts. The first is the content of result.json, in which the metrics of each scored model
      and split include the scores; it is None if the run is not finished. The second has the
      description of the translations of every split.
    """
    result, folder = run.result, run.path / FOLDER
    if result is None or not folder.exists():
        return result, {}
    found = {}
    for path in sorted(folder.glob("*.json")):
        split, about = path.stem, read_json(path)
        members = [result["members"][one["member"]] for one in about["members"]]
        steps = [find_step(result, one["member"], about.get("average")) for one in about["members"]]
        if steps != [one["step"] for one in about["members"]]:
            continue
        found[split] = about
        for member, one in zip(members, about["members"], strict=True):
            if split in member:
                member[split] = {**member[split], **one.get("scores", {})}
    return result, found


def find_step(result: Mapping[str, Any] | None, member: int, average: int | None) -> int | None:
    """Return the training step of the parameters with which a model translates.

    Args:
      result: Content of result.json. None means that the run is not finished; the step is None.
      member: Index of the model in the run.
      average: Number of averaged checkpoints. The result is the step of the last one. None means
        that the model translates with its best checkpoint.
    """
    if result is None:
        return None
    return result["steps"] if average else result["members"][member]["best_step"]


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read_lines(path: epath.Path) -> list[str]:
    """Return the lines of a file. Only a line feed ends a line."""
    if not path.exists():
        raise DataError(f"{path} is missing. Evaluate the run again.")
    return read_text(path).split("\n")[:-1]
