"""Tile sizes, warpgroups and pipeline stages of each kernel."""

import math
from typing import NamedTuple

from distattn_jax.attention.fused.operands import Operands, Plan
from distattn_jax.attention.fused.scoring import DotProductScoring

PROCESSORS = 132  # of an H200
MAX_EXAMPLES = 16


class TileConfig(NamedTuple):
    """Tile shape, warpgroups and pipeline stages of one kernel.

    Attributes:
      rows: Number of rows of a tile. Each compute warpgroup has its own rows.
      columns: Number of columns of a tile.
      warpgroups: Number of compute warpgroups of a thread block. One additional warpgroup copies
        the columns into shared memory.
      stages: Number of tiles whose columns are in shared memory at the same time.
      visits_examples: If True, a thread block may process the same block of several examples, one
        after the other.
      held: Names of the resident matrices that are kept in registers. A matrix product then reads
        only its other operand from shared memory.
    """

    rows: int
    columns: int
    warpgroups: int = 2
    stages: int = 2
    visits_examples: bool = False
    held: tuple[str, ...] = ()

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Number of rows and number of columns of a tile, which one warpgroup computes at once."""
        return self.rows, self.columns

    @property
    def block_rows(self) -> int:
        """Number of rows of a thread block, summed over its compute warpgroups."""
        return self.rows * self.warpgroups


def count_examples(batch: int, blocks: int) -> int:
    """Return the number of examples that a thread block visits, a divisor of the batch size.

    Thread blocks run in waves, one on each processor. Starting a thread block takes about as long
    as computing one block of a short sequence.

    Args:
      batch: Number of examples.
      blocks: Number of blocks of each example.
    """

    def estimate_time(examples: int) -> int:
        waves = math.ceil(batch // examples * blocks / PROCESSORS)
        return waves * (examples + 1)

    divisors = [count for count in range(1, MAX_EXAMPLES + 1) if batch % count == 0]
    return min(divisors, key=estimate_time)


class TileConfigs(NamedTuple):
    """Tile shapes, warpgroups and pipeline stages of the six kernels."""

    forward: TileConfig
    query_gradient: TileConfig
    key_gradient: TileConfig
    received: TileConfig
    attention_given: TileConfig
    position_gradient: TileConfig = TileConfig(rows=64, columns=64)

    @property
    def vector_multiple(self) -> int:
        """Least common multiple of all block and tile sizes. Vectors are padded to a multiple."""
        return math.lcm(*(size for config in self for size in (config.block_rows, config.columns)))


# SHORT, LONG and LONG_DOT_PRODUCT are the fastest sizes measured on an H200 among those that spill
# no registers inside the tile loop. The sizes of WIDE, and those for masks, segments and dropout,
# have few spills, but were not compared with others. A third warpgroup hides more latency, but
# leaves processors idle if the score map is short.
SHORT = TileConfigs(
    forward=TileConfig(rows=64, columns=128),
    query_gradient=TileConfig(rows=64, columns=64),
    key_gradient=TileConfig(rows=64, columns=64, stages=3),
    received=TileConfig(rows=64, columns=64, warpgroups=4),
    attention_given=TileConfig(rows=64, columns=64, warpgroups=4),
)
MANY_SHORT = TileConfigs(*(config._replace(visits_examples=True) for config in SHORT))
LONG = TileConfigs(
    forward=TileConfig(rows=64, columns=128, warpgroups=3),
    query_gradient=TileConfig(rows=64, columns=64, warpgroups=3),
    key_gradient=TileConfig(rows=64, columns=64, stages=3, held=("key",)),
    received=TileConfig(rows=64, columns=128, warpgroups=3),
    attention_given=TileConfig(rows=64, columns=128, warpgroups=3),
)
LONG_DOT_PRODUCT = LONG._replace(
    key_gradient=TileConfig(rows=64, columns=64, warpgroups=3, stages=3)
)
WIDE = SHORT._replace(
    key_gradient=TileConfig(rows=64, columns=64),
    received=TileConfig(rows=64, columns=128),
    attention_given=TileConfig(rows=64, columns=128),
)
# For wide keys of which a narrow part needs a gradient, and narrow values.
LONG_WIDE_KEYS = LONG._replace(
    query_gradient=TileConfig(rows=64, columns=64),
    key_gradient=TileConfig(rows=64, columns=64, stages=3),
)
# For keys of which at most 128 columns need a gradient, and others do not.
VERY_WIDE_KEYS = TileConfigs(*[TileConfig(rows=64, columns=64)] * len(TileConfigs._fields))
# With a mask, segments or received attention, two warpgroups would need too much shared memory.
RESTRICTED_VERY_WIDE_KEYS = VERY_WIDE_KEYS._replace(
    key_gradient=TileConfig(rows=64, columns=64, warpgroups=1)
)
MANY_SHORT_WIDE_KEYS = TileConfigs(*(config._replace(visits_examples=True) for config in WIDE))
# With position vectors, tiles are square: a tile needs the vectors of exactly two blocks of 64.
# The bandwidth of shared memory limits these kernels. They hold as many matrices in registers as
# possible without spills.
POSITIONS = TileConfigs(
    forward=TileConfig(rows=64, columns=64, held=("query", "position_query")),
    query_gradient=TileConfig(rows=64, columns=64, held=("position_query",)),
    key_gradient=TileConfig(rows=64, columns=64, held=("key",)),
    received=TileConfig(rows=64, columns=64, held=("key",)),
    attention_given=TileConfig(rows=64, columns=64, held=("query", "position_query")),
    position_gradient=TileConfig(rows=64, columns=64, held=("lower_positions",)),
)
# Two warpgroups of wide heads would need too much shared memory.
ONE_WARPGROUP = TileConfig(rows=64, columns=64, warpgroups=1)
WIDE_POSITIONS = TileConfigs(*[ONE_WARPGROUP] * len(TileConfigs._fields))._replace(
    position_gradient=ONE_WARPGROUP._replace(stages=1)
)
LONG_POSITIONS = POSITIONS._replace(forward=TileConfig(rows=64, columns=64, warpgroups=3))
MAX_NARROW_WIDTH = 64  # of queries, keys and values
MAX_WIDE_WIDTH = 128  # of queries and keys: wider keys have a part without gradient
MIN_LONG_LENGTH = 1024  # of queries and of keys


def select_tile_configs(plan: Plan, operands: Operands) -> TileConfigs:
    """Return the tile configurations for the arrays and the scoring of a call."""
    is_short = min(operands.query.shape[1], operands.key.shape[1]) < MIN_LONG_LENGTH
    is_wide = max(operands.query.shape[-1], operands.value.shape[-1]) > MAX_NARROW_WIDTH
    if plan.scoring.has_positions:
        if is_wide:
            return WIDE_POSITIONS
        # With a mask, a third warpgroup would need too much shared memory.
        return POSITIONS if is_short or operands.mask is not None else LONG_POSITIONS
    is_dot_product = (
        isinstance(plan.scoring, DotProductScoring) and not plan.scoring.distinctions.far
    )
    if operands.key.shape[-1] > MAX_WIDE_WIDTH:
        more_inputs = (operands.mask, operands.key_mask, operands.query_segments)
        has_more_inputs = plan.received or any(x is not None for x in more_inputs)
        return RESTRICTED_VERY_WIDE_KEYS if has_more_inputs else VERY_WIDE_KEYS
    if is_dot_product and _has_wide_constant_keys(plan, operands):
        return MANY_SHORT_WIDE_KEYS if is_short else LONG_WIDE_KEYS
    if is_wide:
        # With a mask, wider tiles of the forward kernel would need too much shared memory.
        return WIDE if operands.mask is None else WIDE._replace(forward=WIDE.query_gradient)
    if is_short:
        # With a distance function and dropout, the loop over examples was slower on an H200.
        has_slow_loop = operands.dropout_words is not None and not is_dot_product
        return SHORT if has_slow_loop else MANY_SHORT
    if operands.mask is not None or operands.query_segments is not None:
        if is_dot_product:
            return LONG
        return LONG._replace(forward=SHORT.forward, query_gradient=SHORT.query_gradient)
    if is_dot_product:
        return LONG_DOT_PRODUCT
    return LONG if operands.dropout_words is None else LONG._replace(forward=SHORT.forward)


def _has_wide_constant_keys(plan: Plan, operands: Operands) -> bool:
    """Return True if keys are wide, but their gradient and the values are narrow."""
    widths = (plan.trained_key_width or operands.key.shape[-1], operands.value.shape[-1])
    is_restricted = operands.mask is not None or operands.dropout_words is not None
    return operands.key.shape[-1] > MAX_NARROW_WIDTH >= max(widths) and not is_restricted
