"""Run the experiments of a report, several at a time on one device."""

import argparse
import collections
import concurrent.futures
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from distattn_jax.train import OutputConfig
from experiments.bench.workers import compile_quickly
from experiments.commands.report import PAPERS
from experiments.papers import translations
from experiments.papers.when_to_use.measures import HEADS_FILE, PERPLEXITY_FILE

TEMPLATES = Path(__file__).parent.parent / "papers"
RUNS = Path(OutputConfig().directory)
LOGS = RUNS / "logs"
# File that each command writes last, in the folder of its run. `evaluate` takes one run.
WRITTEN = {
    "train": "result.json",
    "evaluate": f"{translations.FOLDER}/test.json",
    "perplexity": PERPLEXITY_FILE,
    "heads": HEADS_FILE,
}
PROGRAM = (sys.executable, "-m", "experiments")
GRACE = 60  # seconds in which an interrupted training may save a checkpoint
FINISHED, INTERRUPTED, FAILED, NOT_STARTED = "finished", "interrupted", "failed", "not started"


class Command(NamedTuple):
    """Command that trains methods, or measures the runs of methods.

    Attributes:
      words: Words before the targets, without `python -m experiments`.
      targets: Names of the methods, or folders of the runs.
      flags: Words after the targets.
      files: Files that exist when the command has finished, one for each target.
    """

    words: tuple[str, ...]
    targets: tuple[str, ...]
    flags: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def arguments(self) -> list[str]:
        """All words of the command."""
        return [*self.words, *self.targets, *self.flags]


class Job(NamedTuple):
    """Commands that train and measure methods of one experiment, one after the other."""

    experiment: str
    methods: tuple[str, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """Name of the experiment, and of its method if there is only one."""
        if len(self.methods) == 1:
            return f"{self.experiment}/{self.methods[0]}"
        return self.experiment

    @property
    def log(self) -> Path:
        """File for the output of all commands."""
        return LOGS / f"{self.name.replace('/', '_')}.txt"


def main(arguments: Sequence[str]) -> None:
    """Run `reproduce REPORT [--option value ...]`. The same command resumes."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be at least 1; got {options.workers}.")
    jobs = list_jobs(read_commands(options.report))
    methods = {job.methods[0] for job in jobs}
    experiments = {job.experiment for job in jobs}
    for flag, known in (("methods", methods), ("experiments", experiments)):
        unknown = sorted({*(getattr(options, flag) or ())} - known)
        if unknown:
            parser.error(f"--{flag}: unknown {unknown}; known are {sorted(known)}.")
    if options.methods:
        jobs = [job for job in jobs if job.methods[0] in options.methods]
    if options.experiments:
        names = dict.fromkeys(options.experiments)
        jobs = [job for name in names for job in jobs if job.experiment == name]
    if options.workers == 1:
        jobs = join_methods(jobs)
    if options.list:
        print("\n".join(shlex.join(one.arguments) for job in jobs for one in job.commands))
        return
    ended = run_jobs(jobs, options.workers, time.monotonic() + options.limit)
    counts = collections.Counter(ended.values())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if counts.keys() != {FINISHED}:
        raise SystemExit(1)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments reproduce", description=__doc__)
    parser.add_argument("report", choices=[name for name in PAPERS if read_commands(name)])
    parser.add_argument(
        "--experiments", nargs="+", metavar="NAME", help="only these, in this order (now: all)"
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these methods")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="jobs at a time (now: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="interrupt all runs after this time; the same command resumes them (now: never)",
    )
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    return parser


def read_commands(report: str) -> list[list[str]]:
    """Return the words of each command that details.md, the template of a report, contains."""
    text = (TEMPLATES / PAPERS[report] / "details.md").read_text()
    lines = re.findall(r"^python -m experiments (.*)$", text, flags=re.M)
    return [words for words in map(shlex.split, lines) if words[0] in WRITTEN]


def list_jobs(lines: Sequence[Sequence[str]]) -> list[Job]:
    """Return one job for each method of each `train` command.

    The job of a method also has the `perplexity` and `heads` commands that name its run. A path
    that ends with METHOD names the runs of all methods of the experiment.

    Args:
      lines: Words of each command, without `python -m experiments`.
    """
    jobs = []
    for words in lines:
        if words[0] != "train":
            continue
        name, before, methods, after = _split_training(words)
        for method in methods:
            run = RUNS / name / method
            commands = [Command(before, (method,), after, (run / WRITTEN["train"],))]
            for kind, *rest in lines:
                if kind != "train" and {str(run), str(RUNS / name / "METHOD")} & {*rest}:
                    flags = itertools.dropwhile(lambda word: not word.startswith("--"), rest)
                    file = run / WRITTEN[kind]
                    commands.append(Command((kind,), (str(run),), tuple(flags), (file,)))
            jobs.append(Job(name, (method,), tuple(commands)))
    return jobs


def join_methods(jobs: Iterable[Job]) -> list[Job]:
    """Join the jobs of each experiment, so that its data are prepared once for all methods."""
    joined: dict[str, list[Job]] = {}
    for job in jobs:
        joined.setdefault(job.experiment, []).append(job)
    return [
        Job(name, tuple(job.methods[0] for job in group), _join_commands(group))
        for name, group in joined.items()
    ]


def _join_commands(jobs: Iterable[Job]) -> tuple[Command, ...]:
    """Return the commands of all jobs. Commands that differ in their targets become one."""
    found: dict[tuple, Command] = {}
    for command in (command for job in jobs for command in job.commands):
        takes_one = command.words == ("evaluate",)
        key = command.words, command.flags, command.targets if takes_one else None
        if key in found:
            targets = (*found[key].targets, *command.targets)
            files = (*found[key].files, *command.files)
            command = command._replace(targets=targets, files=files)
        found[key] = command
    return tuple(found.values())


def _split_training(words: Sequence[str]) -> tuple[str, tuple, tuple, tuple]:
    """Return the name of the experiment, the words before its methods, these, and all others."""
    start = words.index("--methods") + 1
    flags = (i for i in range(start, len(words)) if words[i].startswith("--"))
    end = next(flags, len(words))
    name = words[words.index("--name") + 1]
    return name, tuple(words[:start]), tuple(words[start:end]), tuple(words[end:])


def run_jobs(jobs: Sequence[Job], workers: int, deadline: float) -> dict[str, str]:
    """Run jobs, and print a line when one ends.

    Args:
      jobs: Jobs, in the order in which they start.
      workers: Number of jobs that run at the same time.
      deadline: Value of `time.monotonic()` at which all jobs are interrupted.

    Returns:
      Dict from the name of each job to "finished", "interrupted", "failed" or "not started".
    """
    ended: dict[str, str] = {}

    def run(job: Job) -> None:
        start = time.monotonic()
        ended[job.name] = state = run_job(job, deadline, share_device=workers > 1)
        seconds = time.monotonic() - start
        place = f"; see {job.log}" if state in (INTERRUPTED, FAILED) else ""
        print(f"{job.name}: {state} ({seconds:.0f} s), {len(ended)} of {len(jobs)}{place}")

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        started = [pool.submit(run, job) for job in jobs]
        try:
            for future in started:
                future.result()
        except BaseException:  # Ctrl-C also reaches the running commands, which then end.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return ended


def run_job(job: Job, deadline: float, *, share_device: bool) -> str:
    """Run the commands of a job that have not finished, and return how the job ended.

    Args:
      job: Job. The output of its commands is appended to a log file.
      deadline: Value of `time.monotonic()` at which the job is interrupted.
      share_device: If True, processes allocate memory of a GPU on demand, and compile without
        timing kernels. If False, a process allocates most of the memory at its start.
    """
    environment = dict(os.environ)
    if share_device:
        environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        compile_quickly(environment)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    state = NOT_STARTED
    with job.log.open("a") as log:
        for command in job.commands:
            if all(file.exists() for file in command.files):
                continue
            if time.monotonic() >= deadline:
                return state
            state = INTERRUPTED
            process = subprocess.Popen(
                [*PROGRAM, *command.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            try:
                left = None if deadline == math.inf else deadline - time.monotonic()
                process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return INTERRUPTED
            if process.returncode or not all(file.exists() for file in command.files):
                return FAILED
    return FINISHED
