"""Checkpoints, by Orbax: written in the background, whole or not at all, and checked when read.

Orbax makes a checkpoint appear only when all of it is there. What a disk does to it later is caught
by a fingerprint of every array, taken on the devices before it is written and again after it was
read: a sum of integers, so that it is the same on any mesh.
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


class DamagedError(Exception):
    """A checkpoint that is there but cannot be what was written."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
      directory: where they are, one folder for each step.
      keep: how many are kept, the newest ones.
    """

    def __init__(self, directory: str | Path | epath.Path, *, keep: int = 2):
        folder = epath.Path(directory)
        self.directory = folder if "://" in str(folder) else folder.absolute()
        self._checkpointer = ocp.training.Checkpointer(
            self.directory, preservation_policy=ocp.training.preservation_policies.LatestN(keep)
        )

    def save(self, step: int, tree: Any, *, iterator: Any, wait: bool = False) -> None:
        """Begins to write a checkpoint; what it holds is copied before this returns.

        Args:
          step: how many steps were done.
          tree: of arrays.
          iterator: state of the data's iterator, as JSON.
          wait: whether to return only when it is written.
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
        """The newest checkpoint that is whole: its step, its arrays, its iterator; None: no such.

        A damaged one is named on standard error and passed over.

        Args:
          like: shapes, dtypes and shardings of the tree, which may be those of another mesh.
        """
        for step in sorted(self._steps(), reverse=True):
            try:
                return step, *self._read(step, like)
            except DamagedError as error:
                if jax.process_index() == 0:
                    print(
                        f"The checkpoint {self.directory / str(step)} is damaged ({error}); "
                        "the one before it is used.",
                        file=sys.stderr,
                    )
        return None

    def _steps(self) -> list[int]:
        """The steps whose folders are there, whole or not."""
        if not self.directory.exists():
            return []
        return [int(path.name) for path in self.directory.iterdir() if path.name.isdigit()]

    def _read(self, step: int, like: Any) -> tuple[Any, Any]:
        everywhere = replicated(jax.tree.leaves(like)[0].sharding.mesh)
        prints = jax.eval_shape(fingerprint, like).update(sharding=everywhere)
        wanted = {"tree": like, "fingerprint": prints}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of coroutines that an error leaves behind
                read = self._checkpointer.load_checkpointables(step, {ITEM: wanted})[ITEM]
                metadata = self._checkpointer.metadata(step).custom_metadata
        except Exception as error:
            cause = error.__cause__ or error
            raise DamagedError(str(cause).strip().splitlines()[0][:200]) from None
        if not np.array_equal(fingerprint(read["tree"]), read["fingerprint"]):
            raise DamagedError("its arrays are not those that were written")
        return read["tree"], (metadata or {}).get("iterator")

    def close(self) -> None:
        """Waits for what is being written."""
        self._checkpointer.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@jax.jit
def fingerprint(tree: Any) -> UInt32[Array, " leaves"]:
    """Σ bits_i · (2 i + 1) modulo 2³² of every array: any change of one element changes it."""

    def of(leaf: Array) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.dtype == jnp.bool_:
            leaf = leaf.astype(jnp.uint8)
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
        bits = bits.astype(jnp.uint32).reshape(-1)
        return (bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1)).sum(dtype=jnp.uint32)

    return jnp.stack([of(leaf) for leaf in jax.tree.leaves(tree)])
