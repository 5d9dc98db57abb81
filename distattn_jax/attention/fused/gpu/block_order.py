"""Assignment of the blocks of rows of all heads to the thread blocks of a kernel.

There are three assignments. The first two launch at least one thread block for each processor (SM)
of the GPU, if there are enough blocks of rows. The third may launch fewer: see `BlockOrder.parts`.

    default             one thread block for each block of rows
    persistent          one thread block for each processor, which computes a block of rows in each
                        round
    within one head     one or more thread blocks for each head: thread block g of G computes the
                        blocks g, g + G, g + 2 G, ... of its head

If heads visit different tiles, a head with more work may get more thread blocks within one head:
see `BlockOrder.is_uneven`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from distattn_jax.attention.fused.gpu import tile_configs
from distattn_jax.attention.fused.gpu.kernel_body import GridIndex
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.tile_runs import TileSchedule

ZERO_TILE_TIME = 0.33  # of a tile whose products q · k are treated as 0, in units of other tiles


class Share(NamedTuple):
    """Share of a thread block in the blocks of rows of one head: every `parts`-th block.

    Attributes:
      head: Index of the head, counted over all examples.
      part: Index of the thread block among those of the head, and index of its first block.
      parts: Number of thread blocks of the head.
    """

    head: jax.Array
    part: jax.Array
    parts: jax.Array | int


class BlockOrder(NamedTuple):
    """Blocks of rows that each thread block computes, one after the other.

    Attributes:
      config: Configuration of the kernel.
      batch: Number of examples.
      heads: Number of query heads.
      blocks: Number of blocks of rows of a head.
      is_within_head: True if a thread block may only compute blocks of one head.
      is_uneven: True if heads get thread blocks in proportion to their work: see `divide_work`.
      share: Share of the thread block that runs this code, if `is_uneven`.
    """

    config: TileConfig
    batch: int
    heads: int
    blocks: int
    is_within_head: bool
    is_uneven: bool = False
    share: Share | None = None

    @property
    def pairs(self) -> int:
        """Number of heads of all examples."""
        return self.batch * self.heads

    @property
    def most_parts(self) -> int:
        """Largest number of thread blocks that share the blocks of one head."""
        if not self.is_uneven:
            return self.parts
        return min(self.blocks, 2 * math.ceil(self.thread_blocks / self.pairs))

    @property
    def parts(self) -> int:
        """Number of thread blocks that share the blocks of one head, if `is_within_head`.

        It is the smallest number with which the kernel takes the least time, if all blocks take the
        same time. To save memory, there are at most two thread blocks for each processor, because
        every thread block has its own sums. If there are more heads than that, each head of an
        example gets one thread block.
        """
        processors = tile_configs.count_processors()
        most_parts = min(self.blocks, max(1, 2 * processors // self.pairs))

        def estimate_time(parts: int) -> int:
            return math.ceil(self.pairs * parts / processors) * math.ceil(self.blocks / parts)

        return min(range(1, most_parts + 1), key=lambda parts: (estimate_time(parts), parts))

    @property
    def thread_blocks(self) -> int:
        """Number of thread blocks with which the kernel is launched."""
        blocks = self.pairs * self.blocks
        if self.is_within_head and self.is_uneven:
            processors = tile_configs.count_processors()
            rounds = 1 if 2 * self.pairs <= processors else 2
            return min(blocks, max(self.pairs, rounds * processors))
        if self.is_within_head:
            return self.pairs * self.parts
        return min(blocks, tile_configs.count_processors()) if self.config.is_persistent else blocks

    @property
    def is_loop(self) -> bool:
        """True if a thread block may compute several blocks of rows, one after the other."""
        return self.thread_blocks < self.pairs * self.blocks

    @property
    def row_slots(self) -> int:
        """Number of blocks of rows that are in shared memory at the same time: 1 or 2.

        With 2, the rows of the next block are copied while the current block is computed.
        """
        return 2 if self.is_loop and self.config.is_persistent else 1

    def count_rounds(self, thread_block: jax.Array) -> jax.Array:
        """Return the number of blocks of rows that a thread block computes."""
        if self.is_within_head:
            _, part, parts = self._find_share(thread_block)
            return lax.div(self.blocks - 1 - part, jnp.int32(parts)) + 1
        rounds, rest = divmod(self.pairs * self.blocks, self.thread_blocks)
        is_in_last_round = self._rotate(thread_block, rounds) < rest
        return rounds + is_in_last_round.astype(jnp.int32)

    def locate(self, thread_block: jax.Array, i: jax.Array | int) -> GridIndex:
        """Return the `GridIndex` of the i-th block of rows of a thread block."""
        if self.is_within_head:
            head, part, parts = self._find_share(thread_block)
            block = i * parts + part
        else:
            number = i * self.thread_blocks + self._rotate(thread_block, i)
            head, block = lax.div(number, self.blocks), lax.rem(number, self.blocks)
        return GridIndex(lax.div(head, self.heads), lax.rem(head, self.heads), block, self.heads)

    def divide_work(self, schedule: TileSchedule) -> Int[Array, "G 3"]:
        """Return the `Share` of each thread block, if `is_uneven`.

        Each head gets at least one thread block. All others are given one by one to the head whose
        thread blocks have the most work.
        """
        tile_times = [ZERO_TILE_TIME if kind.is_zero else 1.0 for kind in schedule.kinds]
        runs = schedule.runs[:, :, :, : len(tile_times)]
        work = jnp.einsum("bnkr,r->bn", runs[..., 1] - runs[..., 0], jnp.asarray(tile_times))
        # If a head has k thread blocks already, each of them has 1 / k of its work.
        most = max(self.most_parts - 1, 1)
        per_thread_block = work.reshape(-1, 1) / jnp.arange(1, most + 1)[None]
        _, given = lax.top_k(per_thread_block.reshape(-1), self.thread_blocks - self.pairs)
        parts = 1 + (given[:, None] // most == jnp.arange(self.pairs)[None]).sum(axis=0)
        ends = jnp.cumsum(parts)
        thread_blocks = jnp.arange(self.thread_blocks)
        head = (thread_blocks[:, None] >= ends[None]).sum(axis=1)
        share = Share(head, thread_blocks - (ends - parts)[head], parts[head])
        return jnp.stack(share, axis=-1).astype(jnp.int32)

    def _find_share(self, thread_block: jax.Array) -> Share:
        if self.share is not None:
            return self.share
        head, part = lax.div(thread_block, self.parts), lax.rem(thread_block, self.parts)
        return Share(head, part, self.parts)

    def _rotate(self, thread_block: jax.Array, i: jax.Array | int) -> jax.Array:
        """Return the position in round i of the block of rows that a thread block computes.

        If a round consists of whole heads, the positions rotate by one in each round. Otherwise the
        same thread block would always get the last block of a head, which has the most work under a
        causal mask.
        """
        rotation = 1 if self.thread_blocks % self.blocks == 0 else 0
        return lax.rem(thread_block + i * rotation, self.thread_blocks)


def have_uneven_work(operands: Operands) -> bool:
    """Return True if some heads of a call may need fewer matrix products than others."""
    return operands.is_zero_beyond_radius is not None
