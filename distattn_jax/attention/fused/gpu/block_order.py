"""Assignment of the blocks of rows of all heads to the thread blocks of a kernel.

There are three assignments. The first two launch at least one thread block for each processor (SM)
of the GPU, if there are enough blocks of rows. The third may launch fewer: see `BlockOrder.parts`.

    default             one thread block for each block of rows
    persistent          one thread block for each processor, which computes a block of rows in each
                        round
    within one head     one or more thread blocks for each head: thread block g of G computes the
                        blocks g, g + G, g + 2 G, ... of its head
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from distattn_jax.attention.fused.gpu import tile_configs
from distattn_jax.attention.fused.gpu.kernel_body import GridIndex
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig


class BlockOrder(NamedTuple):
    """Blocks of rows that each thread block computes, one after the other.

    Attributes:
      config: Configuration of the kernel.
      batch: Number of examples.
      heads: Number of query heads.
      blocks: Number of blocks of rows of a head.
      is_within_head: True if a thread block may only compute blocks of one head.
    """

    config: TileConfig
    batch: int
    heads: int
    blocks: int
    is_within_head: bool

    @property
    def parts(self) -> int:
        """Number of thread blocks that share the blocks of one head, if `is_within_head`.

        It is the smallest number with which the kernel takes the least time, if all blocks take the
        same time. To save memory, there are at most two thread blocks for each processor, because
        every thread block has its own sums. If there are more heads than that, each head of an
        example gets one thread block.
        """
        pairs, processors = self.batch * self.heads, tile_configs.count_processors()
        most_parts = min(self.blocks, max(1, 2 * processors // pairs))

        def estimate_time(parts: int) -> int:
            return math.ceil(pairs * parts / processors) * math.ceil(self.blocks / parts)

        return min(range(1, most_parts + 1), key=lambda parts: (estimate_time(parts), parts))

    @property
    def thread_blocks(self) -> int:
        """Number of thread blocks with which the kernel is launched."""
        blocks = self.batch * self.heads * self.blocks
        if self.is_within_head:
            return self.batch * self.heads * self.parts
        return min(blocks, tile_configs.count_processors()) if self.config.is_persistent else blocks

    @property
    def is_loop(self) -> bool:
        """True if a thread block may compute several blocks of rows, one after the other."""
        return self.thread_blocks < self.batch * self.heads * self.blocks

    @property
    def row_slots(self) -> int:
        """Number of blocks of rows that are in shared memory at the same time: 1 or 2.

        With 2, the rows of the next block are copied while the current block is computed.
        """
        return 2 if self.is_loop and self.config.is_persistent else 1

    def count_rounds(self, thread_block: jax.Array) -> jax.Array:
        """Return the number of blocks of rows that a thread block computes."""
        if self.is_within_head:
            part = lax.rem(thread_block, self.parts)
            return lax.div(self.blocks - 1 - part, self.parts) + 1
        rounds, rest = divmod(self.batch * self.heads * self.blocks, self.thread_blocks)
        is_in_last_round = self._rotate(thread_block, rounds) < rest
        return rounds + is_in_last_round.astype(jnp.int32)

    def locate(self, thread_block: jax.Array, i: jax.Array | int) -> GridIndex:
        """Return the `GridIndex` of the i-th block of rows of a thread block."""
        if self.is_within_head:
            head, part = lax.div(thread_block, self.parts), lax.rem(thread_block, self.parts)
            block = i * self.parts + part
        else:
            number = i * self.thread_blocks + self._rotate(thread_block, i)
            head, block = lax.div(number, self.blocks), lax.rem(number, self.blocks)
        return GridIndex(lax.div(head, self.heads), lax.rem(head, self.heads), block, self.heads)

    def _rotate(self, thread_block: jax.Array, i: jax.Array | int) -> jax.Array:
        """Return the position in round i of the block of rows that a thread block computes.

        If a round consists of whole heads, the positions rotate by one in each round. Otherwise the
        same thread block would always get the last block of a head, which has the most work under a
        causal mask.
        """
        rotation = 1 if self.thread_blocks % self.blocks == 0 else 0
        return lax.rem(thread_block + i * rotation, self.thread_blocks)
