"""Save and restore checkpoints with Orbax, in the background, with a checksum for every array.

A checkpoint is complete when its manifest is written. The manifest lists a digest of every file.
Older checkpoints are deleted only when the new checkpoint is complete. Before Orbax reads a file,
the digest of the file is checked.

The checksums of the arrays detect errors between a device and the disk. A checksum is computed on
the devices, before an array is written and again after the array is read. A checksum is a sum of
integers, so it does not depend on the mesh.
"""

import concurrent.futures
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, UInt32
from orbax.checkpoint import v1 as ocp

from distattn_jax.sharding import replicated
from distattn_jax.train import manifest
from distattn_jax.train.processes import call_in_first_process

ITEM = "training"


class CheckpointError(Exception):
    """Raised when a checkpoint cannot be written, or when checkpoints exist and none is usable."""


class Checkpoints(contextlib.AbstractContextManager):
    """Save and restore the checkpoints of one run.

    Args:
      directory: Directory of the checkpoints. A checkpoint is a folder named after its step, with a
        manifest beside it.
      keep: Number of checkpoints to keep. Older checkpoints are deleted.
    """

    def __init__(self, directory: str | Path | epath.Path, *, keep: int = 2):
        path = epath.Path(directory)
        self.directory = path if "://" in str(path) else path.absolute()
        self._keep = keep
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[int, concurrent.futures.Future[None]] | None = None
        self._unusable: set[int] = set()  # steps that `restore` skipped
        self._has_failed = False
        self._filter = _OrbaxFilter()
        logging.getLogger("absl").addFilter(self._filter)
        self._previous_hook = sys.unraisablehook
        sys.unraisablehook = self._report_unraisable

    def save(self, step: int, tree: Any) -> None:
        """Copy the arrays, then write a checkpoint in the background.

        The arrays may be donated or changed as soon as this method returns.

        Args:
          step: Number of training steps completed.
          tree: Pytree of arrays to save.

        Raises:
          CheckpointError: This checkpoint or the previous checkpoint cannot be written.
        """
        self.wait()
        self._unusable.discard(step)
        path = self.directory / str(step)
        with self._explain_failure(step):
            if jax.process_index() == 0:
                self.directory.mkdir(parents=True, exist_ok=True)
                manifest.mark_incomplete(path)
            content = {"tree": tree, "fingerprint": fingerprint(tree)}
            written = ocp.save_checkpointables_async(path, {ITEM: content}, overwrite=True)
        self._pending = step, self._thread.submit(self._complete, step, written)

    def _complete(self, step: int, written: Any) -> None:
        """Wait until Orbax has written a checkpoint, write its manifest, delete older checkpoints.

        `written` is the response of Orbax. Its method `result` must be called for every checkpoint,
        because the call also ends a thread and an event loop of Orbax.
        """
        written.result()
        if jax.process_index() == 0:
            manifest.write_manifest(self.directory / str(step))
            self._delete_others(step)

    def _delete_others(self, newest: int) -> None:
        """Delete unusable and old checkpoints, and the incomplete files of killed processes.

        The newest usable checkpoints are kept. If a file cannot be deleted now, e.g. because
        another process reads it, the next save tries again.
        """
        usable = [step for step in self._list_steps() if step not in self._unusable]
        steps = [step for step in usable if step <= newest][: self._keep]
        checkpoints = [self.directory / str(step) for step in steps]
        kept = {path.name for path in (*checkpoints, *map(manifest.manifest_path, checkpoints))}
        for path in self.directory.iterdir():
            if path.name.partition(".")[0].isdigit() and path.name not in kept:
                with contextlib.suppress(OSError):
                    path.rmtree() if path.is_dir() else path.unlink()

    def wait(self) -> None:
        """Wait until the current checkpoint is written.

        Raises:
          CheckpointError: The checkpoint cannot be written.
        """
        if self._pending is not None:
            (step, pending), self._pending = self._pending, None
            with self._explain_failure(step):
                pending.result()

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Read the newest checkpoint that is not damaged.

        If a newer checkpoint is damaged, a message on standard error says what is wrong with it and
        which checkpoint is used instead.

        Args:
          like: Pytree of `jax.ShapeDtypeStruct`: shapes, dtypes and shardings of the arrays. The
            mesh may differ from the mesh used for saving.

        Returns:
          The step and the pytree of arrays; None if the directory has no checkpoint.

        Raises:
          CheckpointError: There are checkpoints, but none of them can be read.
        """
        problems: dict[int, str] = {}
        for step in call_in_first_process(self._list_steps):
            try:
                tree = self._read(step, like)
            except _UnusableError as error:
                problems[step] = str(error)
                self._unusable.add(step)
                continue
            if problems and jax.process_index() == 0:
                print(self._describe_problems(problems, used=step), file=sys.stderr)
            return step, tree
        if problems:
            raise CheckpointError(self._describe_problems(problems, used=None))
        return None

    def restore_last(self, count: int, like: Any) -> Iterator[tuple[int, Any]]:
        """Read the newest checkpoints one after another, the newest first.

        Args:
          count: Number of checkpoints.
          like: Pytree of `jax.ShapeDtypeStruct`: shapes, dtypes and shardings of the arrays.

        Yields:
          The step and the pytree of arrays of each checkpoint.

        Raises:
          CheckpointError: There are fewer than `count` checkpoints, or one of them is damaged.
        """
        steps = call_in_first_process(self._list_steps)
        if len(steps) < count:
            raise CheckpointError(
                f"{self.directory}: has {len(steps)} checkpoints, but {count} are needed. A run "
                "keeps as many checkpoints as --output.keep says."
            )
        for step in steps[:count]:
            try:
                yield step, self._read(step, like)
            except _UnusableError as error:
                raise CheckpointError(
                    f"{self.directory}: the checkpoint of step {step} cannot be used: {error}"
                ) from None

    def _list_steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, the newest first.

        The list includes damaged checkpoints. It does not include a checkpoint whose writing was
        not finished, e.g. because the process was killed.
        """
        if not self.directory.exists():
            return []
        names = {path.name.removesuffix(".json") for path in self.directory.iterdir()}
        steps = sorted((int(name) for name in names if name.isdigit()), reverse=True)
        return [step for step in steps if not manifest.is_incomplete(self.directory / str(step))]

    def _read(self, step: int, like: Any) -> Any:
        """Read the checkpoint of one step, check its files and checksums, and return its arrays."""
        path = self.directory / str(step)
        damage = call_in_first_process(lambda: manifest.find_damage(path))
        if damage is not None:
            raise _UnusableError(damage)
        leaves = jax.tree.leaves(like)
        everywhere = replicated(leaves[0].sharding.mesh)
        checksums = jax.ShapeDtypeStruct((len(leaves),), jnp.uint32, sharding=everywhere)
        expected = {"tree": like, "fingerprint": checksums}
        try:
            with warnings.catch_warnings():
                # When reading fails, Orbax leaves coroutines that are never awaited.
                warnings.simplefilter("ignore")
                content = ocp.load_checkpointables(path, {ITEM: expected})[ITEM]
        except Exception as error:
            reason = _describe(error.__cause__ or error)
            raise _UnusableError(f"its files are intact, but reading failed: {reason}") from None
        if not np.array_equal(fingerprint(content["tree"]), content["fingerprint"]):
            raise _UnusableError("its arrays differ from their saved checksums")
        return content["tree"]

    def _describe_problems(self, problems: dict[int, str], *, used: int | None) -> str:
        """Return a paragraph about the checkpoints that cannot be used.

        `used` is the step of the checkpoint that is used instead; None if there is none.
        """
        lines = [f"\n  step {step}: {reason}" for step, reason in problems.items()]
        if used is not None:
            return (
                f"{self.directory}: the checkpoint of step {used} is used, because newer ones "
                f"cannot be used:{''.join(lines)}"
            )
        return (
            f"{self.directory}: no checkpoint can be used:{''.join(lines)}\n"
            "Nothing was changed. If the reason may pass, try again. If the code has changed, go "
            "back to the version that environment.json of the run names. To start again from step "
            "1, remove this folder."
        )

    @contextlib.contextmanager
    def _explain_failure(self, step: int) -> Iterator[None]:
        """Convert any error in the `with` block into a `CheckpointError`.

        The message says that the checkpoint of `step` cannot be written, and why.
        """
        try:
            yield
        except Exception as error:
            self._has_failed = True
            complete = self._list_steps()
            kept = (
                f"The newest checkpoint is that of step {complete[0]}."
                if complete
                else "There is no checkpoint yet."
            )
            raise CheckpointError(
                f"{self.directory}: the checkpoint of step {step} cannot be written: "
                f"{_describe(error)}. {kept} Once the cause is removed, the same command "
                "resumes the run."
            ) from error

    def close(self) -> None:
        """Wait until the current checkpoint is written, and end the thread that writes."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            if not self._has_failed:  # Threads of Orbax report a failure also later.
                logging.getLogger("absl").removeFilter(self._filter)
                sys.unraisablehook = self._previous_hook

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _report_unraisable(self, unraisable: Any) -> None:
        """Report an error of a callback, unless Orbax has closed the event loop of the callback.

        If saving fails, Orbax closes its event loop while other threads still write arrays. Python
        would print a traceback for each of them.
        """
        if str(unraisable.exc_value) != "Event loop is closed":
            self._previous_hook(unraisable)


class _UnusableError(Exception):
    """Raised when one checkpoint is damaged or cannot be read."""


class _OrbaxFilter(logging.Filter):
    """Filter that drops the log messages of Orbax.

    If saving fails, Orbax raises an error. Orbax also logs this error several times, with hundreds
    of lines.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}checkpoint{os.sep}" not in record.pathname


def _describe(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters.

    If the disk is full, the result says only this, without the name of a temporary file.
    """
    if "No space left on device" in str(error):
        return "no space is left on the disk"
    if "File too large" in str(error):
        return "a file is larger than the system allows (see ulimit -f)"
    return " ".join((str(error) or type(error).__name__).split())[:300]


def fingerprint(tree: Any) -> UInt32[Array, " leaves"]:
    """Return one checksum for each array of a pytree: Σᵢ bitsᵢ · (2i + 1) modulo 2³².

    bitsᵢ is the bit pattern of element i as an unsigned integer. The factors 2i + 1 are odd, so a
    change of a single element always changes the checksum, if elements have at most 32 bits.

    Each checksum is awaited before the next one is computed. If a CPU stands for several devices,
    programs that gather sharded arrays at the same time may wait for each other forever.
    """
    checksums = [jax.block_until_ready(_checksum(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(checksums)


@jax.jit  # Many arrays have the same shape, and each shape is compiled once.
def _checksum(leaf: Array) -> UInt32[Array, ""]:
    """Return the checksum of one array."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
    bits = bits.astype(jnp.uint32).reshape(-1)
    return (bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1)).sum(dtype=jnp.uint32)
