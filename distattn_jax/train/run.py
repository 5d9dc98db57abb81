"""A run on disk: its folder, what is saved in it, and how to get the trained model back."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax import data, sharding
from distattn_jax.train import flags
from distattn_jax.train.checkpoint import Checkpoints
from distattn_jax.train.config import Config
from distattn_jax.train.members import members_of
from distattn_jax.train.metrics import score
from distattn_jax.train.optimizer import direction_of
from distattn_jax.train.state import Birth, graph_of
from distattn_jax.train.tasks import Prepared, directory_of, kind_of, task_of
from distattn_jax.train.text_task import TextTask

# What may change between two starts of the same run: where and how it is computed and kept.
MAY_CHANGE = ("mesh.", "output.", "methods", "data.directory", "data.manual_dir")
PACKAGES = ("distattn-jax", "flax", "grain", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")


class RunError(Exception):
    """A run that cannot be begun, or gone on with, as it was asked for."""


class Run(NamedTuple):
    """A folder.

    It holds config.json, environment.json, data.json, tokenizer.json, labels.json and plan.json
    from the start, metrics.jsonl, timing.jsonl, events/ and checkpoints/ as it goes on, and
    result.json when it is finished.
    """

    path: epath.Path

    @property
    def checkpoints(self) -> epath.Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run came to; None while it is not finished."""
        return _read_json(self.path / "result.json")

    @property
    def steps(self) -> int | None:
        """How many steps it is to have; None before it was begun."""
        return (_read_json(self.path / "plan.json") or {}).get("steps")

    def other_files(self, about: Mapping[str, Any]) -> list[str]:
        """A line for each kind of files that were others, where both know which they were.

        `about`: what is known of the data now.
        """
        before, now = _digests(_read_json(self.path / "data.json") or {}), _digests(about)
        unknown = tuple(name for name in now if not (before[name] and now[name]))
        return flags.differences(before, now, ignoring=unknown)

    def plan(self, steps: int) -> None:
        """Says how many steps it is to have."""
        _write_json(self.path / "plan.json", {"steps": steps})

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result."""
        _write_json(self.path / "result.json", result)

    def note_time(self, seconds: float, steps: int, spans: Sequence[tuple[int, float]]) -> None:
        """Adds one start of the run, from its first step to its last, to timing.jsonl.

        `spans`: of steps that nothing came between, how many they were and the seconds they took.
        """
        short = [(count, round(taken, 3)) for count, taken in spans]
        line = json.dumps({"seconds": round(seconds, 3), "steps": steps, "spans": short})
        path = self.path / "timing.jsonl"
        before = path.read_text() if path.exists() else ""
        path.write_text(f"{before}{line}\n")

    @property
    def step_seconds(self) -> float | None:
        """What a step of all members takes, when all is compiled; None: that is not known.

        It is known of spans of steps after the first of every start of the run.
        """
        path = self.path / "timing.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        spans = [span for line in lines for span in json.loads(line).get("spans", [])[1:]]
        steps = sum(count for count, _ in spans)
        return sum(seconds for _, seconds in spans) / steps if steps else None


def open_run(config: Config, prepared: Prepared) -> Run:
    """The folder of a run of one method, made or found; refuses one of other settings or files."""
    run = Run(directory_of(config) / config.methods[0])
    saved = _read_json(run.path / "config.json")
    now = flags.to_dict(config)
    if saved is not None:
        saved = {**flags.to_dict(Config()), **saved}  # it may be older than some of the fields
        different = flags.differences(saved, now, ignoring=MAY_CHANGE)
        different += run.other_files(prepared.about)
        if different:
            raise RunError(
                f"{run.path} holds a run of another configuration:\n  "
                + "\n  ".join(different)
                + "\nGive --name or --output.directory another value, or remove that folder."
            )
    if jax.process_index() == 0 and run.result is None:
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            _write_json(run.path / "config.json", now)
            _write_json(run.path / "environment.json", environment())
            _write_json(run.path / "data.json", prepared.about)
            _write_json(run.path / "labels.json", list(prepared.labels))
            data.save_tokenizer(prepared.tokenizer, run.path / "tokenizer.json")
        except OSError as error:
            raise RunError(
                "output.directory must be a folder that can be written; got "
                f"{config.output.directory}: {error.strerror or error}."
            ) from None
    return run


def environment() -> dict[str, Any]:
    """Where a run is computed, and with what."""
    device = jax.devices()[0]
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


class Loaded(NamedTuple):
    """A trained model, and what it needs to read a text."""

    task: TextTask
    model: nnx.Module
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    config: Config


def load_config(path: str | Path | epath.Path) -> Config:
    """The configuration that a run was made with."""
    saved = _read_json(epath.Path(path) / "config.json")
    if saved is None:
        raise RunError(f"{path} is not a run: it holds no config.json.")
    return flags.from_dict(Config(), saved)


def load_task(path: str | Path | epath.Path) -> TextTask:
    """The task of a run, without its data."""
    folder, config = epath.Path(path), load_config(path)
    about = _read_json(folder / "data.json") or {}
    prepared = Prepared(
        labels=tuple(_read_json(folder / "labels.json") or ()),
        tokenizer=data.load_tokenizer(folder / "tokenizer.json"),
        tables={},
        arguments=kind_of(config.task).task.arguments_of(about),
        about=about,
    )
    return task_of(config, prepared)


def load_best(path: str | Path | epath.Path) -> tuple[TextTask, Any]:
    """The task of a run and the best parameters of all of its members."""
    config, task = load_config(path), load_task(path)
    birth = Birth(
        task, direction_of(config.optimizer), members_of(config), sharding.make_mesh(1, 1)
    )
    with Checkpoints(Run(epath.Path(path)).checkpoints) as checkpoints:
        restored = checkpoints.restore(birth.like)
    if restored is None:
        raise RunError(f"{path} holds no checkpoint that can be read.")
    return task, restored[1].best.params


def load(path: str | Path | epath.Path, *, member: int | None = None) -> Loaded:
    """The trained model of a run, with its tokenizer, labels and configuration.

    Args:
      path: folder of the run, e.g. runs/nearest/distance_aware.
      member: which of its models; None: the one that did best on the validation set.
    """
    task, params = load_best(path)
    count = len(members_of(load_config(path)))
    if member is None:
        member = best_member(path)
    if not 0 <= member < count:
        raise ValueError(
            f"member must be one of the {count} of the run, 0 to {count - 1}; got {member}."
        )
    model = nnx.merge(graph_of(task), jax.tree.map(lambda leaf: leaf[member], params))
    return Loaded(task, model, task.tokenizer, task.labels, load_config(path))


def best_member(path: str | Path | epath.Path) -> int:
    """The member of a finished run with the best validation; 0 of one that is not finished."""
    result = Run(epath.Path(path)).result
    if result is None:
        return 0
    criterion = result["criterion"]
    scores = [score(criterion, member["validation"][criterion]) for member in result["members"]]
    return max(range(len(scores)), key=scores.__getitem__)


def _digests(about: Mapping[str, Any]) -> dict[str, str | None]:
    """What tells files apart, by their kind; None: that is not known."""
    return {
        "raw files of the data": about.get("raw_files"),
        "pre-trained weights": about.get("pretrained", {}).get("digest"),
    }


def _read_json(path: epath.Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _write_json(path: epath.Path, content: Any) -> None:
    """Whole or not at all: a file that is cut short would hide a run."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def _version(package: str) -> str | None:
    """None where a package is used without being installed, as from a checkout."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache  # as it was when the process began, whatever is committed since
def _commit() -> str | None:
    """The commit of the checkout this runs from, and whether files were changed since."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
