"""How much each pass computes at once."""

import math
from typing import NamedTuple

from distattn_jax.attention.fused.gpu.tile_loop import Block
from distattn_jax.attention.fused.operands import Operands, Plan


class Blocks(NamedTuple):
    """The blocks of each pass."""

    forward: Block
    of_queries: Block
    of_keys: Block
    received: Block
    given: Block

    @property
    def whole(self) -> int:
        """Vectors are padded to a multiple of it, so that no part of them ends outside."""
        return math.lcm(*(size for block in self for size in (block.height, block.columns)))


# With three warpgroups there is more to do while one waits; but short maps do not fill them. The
# fastest of those tried on an H200 that spill no registers inside their loops.
SHORT = Blocks(
    forward=Block(rows=64, columns=128),
    of_queries=Block(rows=64, columns=64),
    of_keys=Block(rows=64, columns=64, stages=3),
    received=Block(rows=64, columns=128),
    given=Block(rows=64, columns=128),
)
LONG = Blocks(
    forward=Block(rows=64, columns=128, warpgroups=3),
    of_queries=Block(rows=64, columns=64, warpgroups=3),
    of_keys=Block(rows=64, columns=64, stages=3),
    received=Block(rows=64, columns=128, warpgroups=3),
    given=Block(rows=64, columns=128, warpgroups=3),
)
LONG_PLAIN = LONG._replace(of_keys=Block(rows=64, columns=64, warpgroups=3, stages=3))
SHORTEST_LONG = 1024  # rows


def blocks_of(plan: Plan, operands: Operands) -> Blocks:
    """Those for maps of this size."""
    if min(operands.query.shape[1], operands.key.shape[1]) < SHORTEST_LONG:
        return SHORT
    return LONG if plan.scoring.knows_distance else LONG_PLAIN
