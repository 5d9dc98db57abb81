"""Loading of trained models from the folder of a run, or from a folder that `save` wrote."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from etils import epath
from flax import nnx
from safetensors import SafetensorError
from tokenizers import Tokenizer

from distattn_jax import data, sharding
from distattn_jax.tasks.registry import find_task
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import Checkpoints, Config, Run, RunError
from distattn_jax.train.members import list_members
from distattn_jax.train.options import options_from_dict
from distattn_jax.train.results import best_member
from distattn_jax.train.run import AnyPath
from distattn_jax.train.run_files import read_json
from distattn_jax.train.state import Training, abstract_model, abstract_state, model_graph

# Folders of the small trained models that the package contains, by name. Their README.md files say
# what they learned from, and how well.
TRAINED = {
    name: Path(__file__).parent.parent / "trained" / name
    for name in ("language_model", "nearest", "tagger")
}
WEIGHTS_FILE = "model.safetensors"  # parameters of one model, instead of checkpoints


class LoadedModel(NamedTuple):
    """Trained model, with its task, tokenizer, labels and config."""

    task: TextTask
    model: nnx.Module
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    config: Config


def load_config(path: AnyPath) -> Config:
    """Return the config that a run was started with."""
    run = Run(epath.Path(path))
    saved = {name: value for name, value in run.read_config().items() if name != "format"}
    try:
        return options_from_dict(find_task(str(saved.pop("task", None))).config_class(), saved)
    except ValueError as error:
        raise RunError(f"{run.path / 'config.json'}: {error}") from None


def load_task(path: AnyPath, config: Config | None = None) -> TextTask:
    """Return the task of a run, without reading the examples.

    Args:
      path: Folder of the run.
      config: Config of the task. If None, the config that is stored in the folder is used.
    """
    folder, config = epath.Path(path), config or load_config(path)
    Run(folder).check_files("tokenizer.json", "labels.json")
    return find_task(config.task)(
        config,
        tokenizer=data.load_tokenizer(folder / "tokenizer.json"),
        labels=tuple(map(str, read_json(folder / "labels.json", list) or ())),
        data=Run(folder).data,
    )


def load_parameters(path: AnyPath, task: TextTask, *, average: int | None = None) -> Any:
    """Load the parameters of all models of a run: the best ones, or a mean over checkpoints.

    Each returned array has a leading axis over models.

    Args:
      path: Folder of the run.
      task: Task of the run.
      average: Number of checkpoints to average. The result is the mean of the current parameters in
        the last `average` checkpoints. If None, the result is the parameters with the best
        validation score.

    Raises:
      CheckpointError: The run has fewer than `average` checkpoints, or one of them is damaged.
      RunError: The run has no checkpoint, or the newest checkpoint that can be read does not
        contain the parameters that result.json describes. Or the folder holds a saved model, and
        its file of parameters is damaged, or `average` is given.
    """
    run = Run(epath.Path(path))
    if (run.path / WEIGHTS_FILE).is_file():
        if average is not None:
            raise RunError(f"{path} holds one saved model; --average needs a run with checkpoints.")
        return _read_weights(run, task)
    state = abstract_state(task, sharding.make_mesh(1, 1))
    if average is not None:
        return _average_checkpoints(run, average, state)
    with Checkpoints(run.checkpoints) as checkpoints:
        restored = checkpoints.restore(state)
    if restored is None:
        raise RunError(f"{path} holds no checkpoint yet.")
    step, training = restored
    measured = [member["best_step"] for member in (run.result or {}).get("members", [])]
    if measured and np.asarray(training.best.step).tolist() != measured:
        raise RunError(
            f"{path}: result.json describes the parameters of the steps {measured}, which the "
            f"checkpoint of step {step} does not contain. Remove result.json and train again with "
            "the same command: it computes the missing steps."
        )
    return training.best.params


def name_parameter(path: tuple[str | int, ...]) -> str:
    """Return the name of a parameter in model.safetensors: its path in the model, with dots."""
    return ".".join(map(str, path))


def _read_weights(run: Run, task: TextTask) -> Any:
    """Read the parameters of a saved model. Each array has a leading axis of length 1."""
    file = run.path / WEIGHTS_FILE
    content = file.read_bytes()
    digest = run.data.get("files", {}).get(WEIGHTS_FILE)
    if digest != hashlib.sha256(content).hexdigest():
        raise RunError(f"{file}: changed after it was saved. Restore it.")
    try:
        arrays = safetensors.numpy.load(content)
    except SafetensorError as error:
        raise RunError(f"{file}: must be a safetensors file: {error}") from None
    expected = nnx.traversals.flatten_mapping(abstract_model(task)[1])
    shapes = {name_parameter(path): leaf.shape for path, leaf in expected.items()}
    found = {name: array.shape for name, array in arrays.items()}
    if found != shapes:
        wrong = sorted(dict(found.items() ^ shapes.items()))
        raise RunError(f"{file}: does not fit config.json; these parameters differ: {wrong}.")
    flat = {path: jnp.asarray(arrays[name_parameter(path)])[None] for path in expected}
    return nnx.traversals.unflatten_mapping(flat)


def _average_checkpoints(run: Run, count: int, like: Training) -> Any:
    """Return the mean of the parameters over the last `count` checkpoints of a run."""
    if count < 1:
        raise ValueError(f"average (--average) must be at least 1; got {count}.")
    total: Any = None
    with Checkpoints(run.checkpoints) as checkpoints:
        for _, training in checkpoints.restore_last(count, like):
            params = training.state.params
            total = params if total is None else jax.tree.map(jnp.add, total, params)
    return jax.tree.map(lambda leaf: leaf / count, total)


def load(
    path: AnyPath, *, member: int | None = None, average: int | None = None, portable: bool = False
) -> LoadedModel:
    """Load the trained model of a run, with its tokenizer, labels and config.

    Args:
      path: Folder of the run, e.g. runs/nearest/distance_aware, or folder that `save` wrote.
      member: Index of the model, if the run trained several models side by side. None selects the
        model with the best validation score. In an unfinished run, None selects model 0.
      average: Number of checkpoints to average. The model has the mean of the current parameters in
        the last `average` checkpoints. If None, the model has the parameters with the best
        validation score.
      portable: If True, compute in float32, with an implementation of attention that runs on this
        device. If False, compute as in training.
    """
    task = load_task(path, portable_config(load_config(path)) if portable else None)
    params = load_parameters(path, task, average=average)
    model = select_model(task, params, choose_member(Run(epath.Path(path)), task.config, member))
    return LoadedModel(task, model, task.tokenizer, task.labels, task.config)


def choose_member(run: Run, config: Config, member: int | None) -> int:
    """Return the index of a model of a run.

    Args:
      run: Run.
      config: Config of the run.
      member: Index of the model. None selects the model with the best validation score, or model 0
        in an unfinished run.
    """
    count = len(list_members(config))
    if member is None:
        result = run.result
        return 0 if result is None else best_member(result)
    if not 0 <= member < count:
        raise ValueError(
            f"member (--member) must be one of the {count} of the run, 0 to {count - 1}; "
            f"got {member}."
        )
    return member


def select_model(task: TextTask, params: Any, member: int) -> Any:
    """Return one of the models of a run.

    Args:
      task: Task of the run.
      params: Parameters of all models, with a leading axis over models.
      member: Index of the model.
    """
    return nnx.merge(model_graph(task), jax.tree.map(lambda leaf: leaf[member], params))


def portable_config(config: Config) -> Config:
    """Return a copy of the config that can be run on any device.

    The copy computes in float32, with the default precision of JAX, and selects the implementation
    of attention automatically.
    """
    changed: Any = config
    model = dataclasses.replace(changed.model, implementation="", precision="", dtype="float32")
    return dataclasses.replace(changed, model=model)
