"""Folder of a run: its files, and the checks before a run is started or resumed."""

import contextlib
import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath

from distattn_jax.data.files import read_text
from distattn_jax.train.config import Config
from distattn_jax.train.options import describe_differences, options_to_dict, result_options
from distattn_jax.train.processes import LockedError, call_in_first_process, hold_lock
from distattn_jax.train.run_files import (
    hash_text,
    read_json,
    read_json_lines,
    read_result,
    write_atomically,
    write_json,
    write_result,
)

AnyPath = str | Path | epath.Path
FORMAT = 3  # version of the files of a run; raised when older runs can no longer be read
SHOWN_RUNS = 10  # largest number of runs that an error message suggests
PACKAGES = ("distattn-jax", "flax", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")


class RunError(Exception):
    """Raised when a run cannot be started, resumed or read as requested."""


class Run(NamedTuple):
    """Folder of one run. It contains these files:

    - config.json, data.json and the files of the task, written when the run is opened
    - plan.json and environment.json, written when training begins or resumes
    - metrics.jsonl with its digest, timing.jsonl, events/ and checkpoints/, written during training
    - result.json, written at the end
    - lock, which names the process that trains the run
    """

    path: epath.Path

    @property
    def checkpoints(self) -> epath.Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of result.json; None if the run is not finished."""
        return read_result(self.path / "result.json")

    @property
    def data(self) -> dict[str, Any]:
        """Description of the data that the run was trained on."""
        path = self.path / "data.json"
        data = read_json(path) or {}
        for name in ("digests", "files"):
            if not isinstance(data.get(name, {}), dict):
                raise RunError(f"{path}: {name} must be an object.")
        return data

    def check_files(self, *required: str) -> None:
        """Raise RunError if a file that a trained model needs is missing or was changed.

        Runs of older versions have no digests: only the existence of their files is checked.

        Args:
          *required: Names of the files.
        """
        digests = self.data.get("files", {})
        is_finished = self.result is not None
        remedy = "Restore it." if is_finished else "The same training command writes it again."
        for name in required:
            path = self.path / name
            if not path.is_file():
                raise RunError(f"{path}: missing. {remedy}")
            if name in digests and digests[name] != hash_text(read_text(path)):
                raise RunError(f"{path}: changed after it was saved. {remedy}")

    @property
    def steps(self) -> int | None:
        """Planned number of training steps; None if the run has not started."""
        path = self.path / "plan.json"
        plan = read_json(path)
        if plan is not None and not isinstance(plan.get("steps"), int):
            raise RunError(f"{path}: must contain the number of steps.")
        return None if plan is None else plan["steps"]

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a training step in seconds; None if no time was measured.

        A step updates all models of the run. Each time the run is started or resumed, the steps
        before the first validation or checkpoint are not counted, because their time includes
        compilation.
        """
        spans = [span for line in self.timings for span in line["spans"][1:]]
        steps = sum(count for count, _ in spans)
        return sum(seconds for _, seconds in spans) / steps if steps else None

    @property
    def timings(self) -> list[dict[str, Any]]:
        """Lines of timing.jsonl, one for each time the run was started or resumed."""
        path = self.path / "timing.jsonl"
        lines = read_json_lines(path, ("seconds", "steps"))
        for number, line in enumerate(lines, start=1):
            spans = line.setdefault("spans", [])
            if not isinstance(spans, list) or not all(map(_is_pair_of_numbers, spans)):
                raise RunError(f"{path}:{number}: spans must be pairs of steps and seconds.")
        return lines

    def read_config(self) -> dict[str, Any]:
        """Return the content of config.json.

        Raises:
          RunError: The file is missing or was written by an older version.
        """
        saved = read_json(self.path / "config.json")
        if saved is None:
            inside = [str(run) for run in find_runs(self.path, depth=2)]
            more = ", ..." if len(inside) > SHOWN_RUNS else "."
            hint = f" Runs inside: {', '.join(inside[:SHOWN_RUNS])}{more}" if inside else ""
            raise RunError(f"{self.path} is not a run: it holds no config.json.{hint}")
        if saved.get("format") != FORMAT:
            raise RunError(
                f"{self.path} was written by an earlier version of distattn_jax, which stored runs "
                "differently. Read it with the version that its environment.json names, or train "
                "it again."
            )
        return saved

    def describe_changed_files(self, data: Mapping[str, Any]) -> list[str]:
        """Compare the digests of input files with the digests stored when this run was created.

        Args:
          data: Description of the current data, with the digests of its files.

        Returns:
          One line for each digest that changed, e.g. the digest of the raw files of the data.
        """
        before, now = self.data.get("digests", {}), data.get("digests", {})
        known = [name for name in now if before.get(name) and now[name]]
        return describe_differences(
            {name: before[name] for name in known}, {name: now[name] for name in known}
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the folder, so that no other process can train this run.

        If the run has several processes, the first one holds the lock for all of them. A folder in
        a cloud bucket is not locked.

        Raises:
          RunError: Another process holds the lock.
        """
        with contextlib.ExitStack() as stack:

            def acquire() -> str | None:
                try:
                    stack.enter_context(hold_lock(Path(self.path / "lock")))
                except LockedError as error:
                    return str(error)
                return None

            holder = None if "://" in str(self.path) else call_in_first_process(acquire)
            if holder is not None:
                raise RunError(
                    f"{self.path} is in use ({holder}). Wait until that process ends, or give "
                    "--name or --output.directory another value."
                )
            yield

    def write_plan(self, steps: int) -> None:
        """Write plan.json and environment.json when training begins or resumes.

        Args:
          steps: Planned number of training steps.
        """
        write_json(self.path / "plan.json", {"steps": steps})
        write_json(self.path / "environment.json", environment())

    def write_result(self, result: dict[str, Any]) -> None:
        """Write result.json, which marks the run as finished."""
        write_result(self.path / "result.json", result)

    def add_timing(self, seconds: float, steps: int, spans: Sequence[tuple[int, float]]) -> None:
        """Append one line to timing.jsonl, for the steps since the run was started or resumed.

        Args:
          seconds: Total time, including validation and saving.
          steps: Number of steps since the run was started or resumed.
          spans: Pairs (number of steps, seconds), one for each period of training without
            validation and saving.
        """
        rounded = [(count, round(span_seconds, 3)) for count, span_seconds in spans]
        line = json.dumps({"seconds": round(seconds, 3), "steps": steps, "spans": rounded})
        path = self.path / "timing.jsonl"
        before = path.read_bytes() if path.exists() else b""  # It may be damaged.
        write_atomically(path, before + f"{line}\n".encode())


def find_runs(path: epath.Path, *, depth: int) -> Iterator[epath.Path]:
    """Yield the folders of all runs at most `depth` levels below a path."""
    if (path / "config.json").exists():
        yield path
    elif depth and path.is_dir():
        for inside in sorted(path.iterdir()):
            yield from find_runs(inside, depth=depth - 1)


def experiment_folder(config: Config) -> epath.Path:
    """Return the folder of an experiment. It contains one folder for each run."""
    return epath.Path(config.output.directory) / config.name


def open_run(config: Config, *, data: Mapping[str, Any], files: Mapping[str, str]) -> Run:
    """Return the folder of a run, and create the folder if it does not exist.

    Args:
      config: Config of the run, with exactly one entry in `methods`.
      data: Description of the data, written to data.json.
      files: Dict from file name to content, for further text files that a trained model needs.

    Raises:
      RunError: The folder contains a run with a different config or different data, or another
        process is training this run.
    """
    run = Run(experiment_folder(config) / config.method)
    if (run.path / "config.json").exists():
        saved, now = run.read_config(), result_options(config)
        saved = {**config_to_json(type(config)()), **saved}  # It may lack newer options.
        different = describe_differences({name: saved[name] for name in now}, now)
        different += run.describe_changed_files(data)
        if saved["task"] != config.task:
            different.append(f"task: {saved['task']} before, {config.task} now")
        if different:
            raise RunError(
                f"{run.path} holds a run of another configuration:\n  "
                + "\n  ".join(different)
                + "\nGive --name or --output.directory another value, or remove that folder."
            )
    elif run.checkpoints.exists() and any(run.checkpoints.iterdir()):
        raise RunError(
            f"{run.path} holds checkpoints, but no config.json that describes them. Restore it, "
            "give --name or --output.directory another value, or remove that folder."
        )
    if run.result is None:
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.lock():
                if jax.process_index() == 0:
                    write_json(run.path / "config.json", config_to_json(config))
                    digests = {name: hash_text(content) for name, content in files.items()}
                    write_json(run.path / "data.json", {**data, "files": digests})
                    for name, content in files.items():
                        write_atomically(run.path / name, content)
        except OSError as error:
            raise RunError(
                "--output.directory must be a folder that can be written; got "
                f"{config.output.directory}: {error.strerror or error}."
            ) from None
    return run


def _is_pair_of_numbers(value: Any) -> bool:
    """Return True if a value is a list of two numbers."""
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(isinstance(number, int | float) for number in value)


def config_to_json(config: Config) -> dict[str, Any]:
    """Return the content of config.json: file format, name of the task and all options."""
    return {"format": FORMAT, "task": config.task, **options_to_dict(config)}


def environment() -> dict[str, Any]:
    """Return a description of the Git commit, the packages and the devices of this process."""
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


def _version(package: str) -> str | None:
    """Return the version of a package, or None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache  # A commit made while the process runs must not change its answer.
def _commit() -> str | None:
    """Return the Git commit of this source code, or None if it is not in a Git repository.

    If tracked files have uncommitted changes, the result ends in `-dirty`.
    """
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
