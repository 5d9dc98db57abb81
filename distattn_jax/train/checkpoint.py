"""Save and restore checkpoints with Orbax, in the background, with a checksum for every array.

Orbax gives a checkpoint its final name only after all of its files are written. The checksums
detect arrays that change on disk later. A checksum is computed on the devices, before an array is
written and again after the array is read. It is a sum of integers, so it is equal on every mesh.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, UInt32
from orbax.checkpoint import v1 as ocp

from distattn_jax.sharding import replicated

ITEM = "training"


class DamagedCheckpointError(Exception):
    """Raised when a checkpoint cannot be read, or when its arrays changed after saving."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
      directory: Directory of the checkpoints, with one subdirectory per step.
      keep: Number of checkpoints to keep. Older checkpoints are deleted.
    """

    def __init__(self, directory: str | Path | epath.Path, *, keep: int = 2):
        path = epath.Path(directory)
        self.directory = path if "://" in str(path) else path.absolute()
        self._checkpointer = ocp.training.Checkpointer(
            self.directory, preservation_policy=ocp.training.preservation_policies.LatestN(keep)
        )

    def save(self, step: int, tree: Any, *, iterator: Any, wait: bool = False) -> None:
        """Copy the arrays, then write a checkpoint in the background.

        The arrays may be donated or changed as soon as this method returns.

        Args:
          step: Number of training steps completed.
          tree: Pytree of arrays to save.
          iterator: State of the data iterator, as JSON.
          wait: If True, return only after the checkpoint is written.
        """
        self._checkpointer.save_checkpointables_async(
            step,
            {ITEM: {"tree": tree, "fingerprint": fingerprint(tree)}},
            custom_metadata={"iterator": iterator},
            force=True,
            overwrite=True,
        )
        if wait:
            self._checkpointer.wait()

    def restore(self, like: Any) -> tuple[int, Any, Any] | None:
        """Read the newest undamaged checkpoint.

        Damaged checkpoints are skipped, each with a message on standard error.

        Args:
          like: Pytree of `jax.ShapeDtypeStruct`: shapes, dtypes and shardings of the arrays. The
            mesh may differ from the mesh used for saving.

        Returns:
          The step, the pytree of arrays and the state of the data iterator. If the directory has no
          undamaged checkpoint, the result is None.
        """
        for step in sorted(self._steps(), reverse=True):
            try:
                return step, *self._read(step, like)
            except DamagedCheckpointError as error:
                if jax.process_index() == 0:
                    print(
                        f"The checkpoint {self.directory / str(step)} is damaged ({error}). "
                        "Trying the previous checkpoint.",
                        file=sys.stderr,
                    )
        return None

    def _steps(self) -> list[int]:
        """List the steps that have a checkpoint, damaged or not."""
        if not self.directory.exists():
            return []
        return [int(path.name) for path in self.directory.iterdir() if path.name.isdigit()]

    def _read(self, step: int, like: Any) -> tuple[Any, Any]:
        """Return the arrays and the iterator state of one step, after a check of the checksums."""
        everywhere = replicated(jax.tree.leaves(like)[0].sharding.mesh)
        checksums = jax.eval_shape(fingerprint, like).update(sharding=everywhere)
        expected = {"tree": like, "fingerprint": checksums}
        try:
            with warnings.catch_warnings():
                # When reading fails, Orbax leaves coroutines that are never awaited.
                warnings.simplefilter("ignore")
                content = self._checkpointer.load_checkpointables(step, {ITEM: expected})[ITEM]
                metadata = self._checkpointer.metadata(step).custom_metadata
        except Exception as error:
            cause = error.__cause__ or error
            raise DamagedCheckpointError(str(cause).strip().splitlines()[0][:200]) from None
        if not np.array_equal(fingerprint(content["tree"]), content["fingerprint"]):
            raise DamagedCheckpointError("its arrays differ from their saved checksums")
        return content["tree"], (metadata or {}).get("iterator")

    def close(self) -> None:
        """Wait until the current checkpoint is written, and release the resources of Orbax."""
        self._checkpointer.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@jax.jit
def fingerprint(tree: Any) -> UInt32[Array, " leaves"]:
    """Return one checksum per array: the sum over its elements i of bitsᵢ · (2i + 1) modulo 2³².

    The factors 2i + 1 are odd, so a change of one element always changes the checksum (for elements
    of at most 32 bits).
    """

    def checksum(leaf: Array) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.dtype == jnp.bool_:
            leaf = leaf.astype(jnp.uint8)
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
        bits = bits.astype(jnp.uint32).reshape(-1)
        return (bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1)).sum(dtype=jnp.uint32)

    return jnp.stack([checksum(leaf) for leaf in jax.tree.leaves(tree)])
