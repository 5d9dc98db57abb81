"""Saving of one trained model as a small folder, which `load` reads and which can be sent by mail.

The folder of a run holds checkpoints of all its models and of the optimizer. The saved folder holds
one model:

- model.safetensors: parameters; the name of an array is its path in the model, joined by dots
- config.json, data.json, tokenizer.json, labels.json: as in the folder of the run, see `Run`
- result.json, environment.json: metrics of the model, and the software that trained it
- README.md: model card

Every command that reads a trained model reads the folder too. It has no checkpoints, so that
training cannot be resumed from it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from etils import epath
from flax import nnx

from distattn_jax.tasks.load import (
    WEIGHTS_FILE,
    choose_member,
    load_parameters,
    load_task,
    name_parameter,
)
from distattn_jax.train import Config, Run, RunError
from distattn_jax.train.members import Member, apply_setting, list_grid_axes, list_members
from distattn_jax.train.options import iterate_options, options_read_by, replace_options
from distattn_jax.train.run import AnyPath, config_to_json
from distattn_jax.train.run_files import read_json, write_atomically, write_json, write_result

COPIED_FILES = ("tokenizer.json", "labels.json")
CARD_FILE = "README.md"
DATA_NOTE = (
    "Write here where the texts of the training set come from, under which licence, and what the "
    "model must not be used for."
)


def save(
    path: AnyPath, folder: AnyPath, *, member: int | None = None, average: int | None = None
) -> None:
    """Save one model of a run in a new folder, with all that is needed to use it.

    `load` reads the folder. Paths of this machine are not saved.

    Args:
      path: Folder of the run.
      folder: Folder to write. It must be empty or absent.
      member: Index of the model. None selects the model with the best validation score.
      average: Number of checkpoints to average, see `load`. The metrics of the run do not describe
        a mean of checkpoints, and are not saved with it.
    """
    run, target = Run(epath.Path(path)), epath.Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target}: a model can be saved in a new or an empty folder only.")
    task = load_task(path)
    params = load_parameters(path, task, average=average)
    index = choose_member(run, task.config, member)
    weights = _serialize(jax.tree.map(lambda leaf: leaf[index], params))
    config = single_model_config(task.config, list_members(task.config)[index])
    result = None if average is not None else _select_result(run.result, index)
    environment = read_json(run.path / "environment.json")
    digests = {**run.data.get("files", {}), WEIGHTS_FILE: hashlib.sha256(weights).hexdigest()}
    size = sum(leaf.size for leaf in jax.tree.leaves(params)) // len(list_members(task.config))

    target.mkdir(parents=True, exist_ok=True)
    for name in COPIED_FILES:
        write_atomically(target / name, (run.path / name).read_bytes())
    write_json(target / "data.json", {**run.data, "files": digests})
    if result is not None:
        write_result(target / "result.json", result)
    if environment is not None:
        write_json(target / "environment.json", environment)
    card = write_card(config, run.data, result, environment, parameters=size)
    write_atomically(target / CARD_FILE, card)
    write_atomically(target / WEIGHTS_FILE, weights)
    write_json(target / "config.json", config_to_json(config))  # The last file makes it a model.


def single_model_config(config: Config, member: Member) -> Config:
    """Return the config of one model of a run, without paths of the machine that trained it.

    Args:
      config: Config of the run.
      member: Seed and hyperparameters of the model.
    """
    changes: dict[str, Any] = {"seed": member.seed, "seeds": 1}
    for name, field, value in iterate_options(config):
        if not field.metadata["changes_result"] and name != "methods":
            changes[name] = field.default
        elif isinstance(value, str) and ("://" in value or value.startswith(("/", "~", "."))):
            changes[name] = PurePosixPath(value).name
    return replace_options(apply_setting(config, member.setting), changes)


def _serialize(params: Any) -> bytes:
    """Return the content of a safetensors file with the parameters of one model."""
    flat = nnx.traversals.flatten_mapping(params)
    arrays = {name_parameter(path): np.ascontiguousarray(leaf) for path, leaf in flat.items()}
    return safetensors.numpy.save(arrays, metadata={"format": "distattn_jax"})


def _select_result(result: dict[str, Any] | None, index: int) -> dict[str, Any] | None:
    """Return the result of a run with only one of its models; None if there is no result."""
    return None if result is None else {**result, "members": [result["members"][index]]}


def write_card(
    config: Config,
    data: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    environment: Mapping[str, Any] | None,
    *,
    parameters: int,
) -> str:
    """Return the text of a model card in Markdown.

    Args:
      config: Config of the model.
      data: Content of data.json.
      result: Content of result.json with the metrics of the model; None if there are none.
      environment: Content of environment.json; None if there is none.
      parameters: Number of parameters of the model.
    """
    (member,) = list_members(config)
    rows = ", ".join(f"{count:,} {split}" for split, count in data.get("rows", {}).items())
    read = options_read_by(config, config.method)
    axes = list_grid_axes(config)
    setting = {axis: value for axis, value in member.setting.items() if axes[axis] in read}
    options = {"seed": member.seed, **setting}
    facts = {
        "task": config.task,
        "method": config.method,
        "data set": f"{config.data.dataset}: {rows}",
        "vocabulary": f"{data.get('vocabulary', 0):,} tokens",
        "classes": data.get("classes"),
        "parameters": f"{parameters:,}",
        "training": f"{result['steps']:,} steps" if result else None,
        "options": ", ".join(f"{name} {value:g}" for name, value in options.items()),
        "software": _describe_software(environment),
    }
    lines = [f"# {config.name}: {config.method}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {fact} |" for name, fact in facts.items() if fact]
    lines += ["", "## Results", "", *_tabulate_result(result)]
    lines += ["", "## Use", "", "```python", "from distattn_jax.tasks import load", ""]
    lines += ['loaded = load("FOLDER")  # model, tokenizer, labels, config', "```"]
    lines += ["", "The folder replaces that of a run in every command that uses a trained model."]
    lines += ["", "## Data, licence and limits", "", DATA_NOTE]
    return "\n".join(lines) + "\n"


def _describe_software(environment: Mapping[str, Any] | None) -> str:
    """Return versions, commit and device of training, as one line; "" if they are unknown."""
    if not environment:
        return ""
    packages = environment.get("packages", {})
    parts = [f"{name} {packages[name]}" for name in ("distattn-jax", "jax") if packages.get(name)]
    commit, _, dirty = (environment.get("commit") or "").partition("-")
    if commit:
        parts.append(f"commit {commit[:12]}" + " with uncommitted changes" * bool(dirty))
    return ", ".join([*parts, f"trained on {environment.get('device', 'an unknown device')}"])


def _tabulate_result(result: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a Markdown table of the metrics of one model on each split."""
    if result is None:
        return ["This model was not measured."]
    (member,) = result["members"]
    splits = [split for split in ("validation", "test") if split in member]
    names = list(member[splits[0]])
    lines = [f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for split in splits:
        cells = [f"{member[split][name]:.4g}" for name in names]
        lines.append(f"| {split} | {' | '.join(cells)} |")
    return lines
