"""Tile sizes, warpgroups and pipeline stages of each kernel."""

import math
from typing import NamedTuple

import jax

from distattn_jax.attention.fused.operands import Operands, Plan
from distattn_jax.attention.fused.scoring import DotProductScoring, TableScoring
from distattn_jax.attention.fused.visible_columns import Window

H200_PROCESSORS = 132


class TileConfig(NamedTuple):
    """Tile shape, warpgroups and pipeline stages of one kernel.

    Attributes:
      rows: Number of rows of a tile. Each compute warpgroup has its own rows.
      columns: Number of columns of a tile.
      warpgroups: Number of compute warpgroups of a thread block. One additional warpgroup copies
        the columns into shared memory.
      stages: Number of tiles whose columns are in shared memory at the same time.
      is_persistent: If True, each processor runs one thread block, which computes many blocks of
        rows, one after the other. If False, there is one thread block for each block of rows.
      held: Names of the resident matrices that are kept in registers. A matrix product then reads
        only its other operand from shared memory.
    """

    rows: int = 64
    columns: int = 64
    warpgroups: int = 2
    stages: int = 2
    is_persistent: bool = False
    held: tuple[str, ...] = ()

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Number of rows and number of columns of a tile, which one warpgroup computes at once."""
        return self.rows, self.columns

    @property
    def block_rows(self) -> int:
        """Number of rows of a thread block, summed over its compute warpgroups."""
        return self.rows * self.warpgroups


def count_processors() -> int:
    """Return the number of processors of the local GPU, or of an H200 if there is no local GPU."""
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    return getattr(gpus[0], "core_count", H200_PROCESSORS) if gpus else H200_PROCESSORS


def count_thread_blocks(config: TileConfig, blocks: int) -> int:
    """Return the number of thread blocks of a kernel.

    Args:
      config: Tile sizes.
      blocks: Number of blocks of rows, summed over all examples and heads.
    """
    return min(blocks, count_processors()) if config.is_persistent else blocks


class TileConfigs(NamedTuple):
    """Tile shapes, warpgroups and pipeline stages of the six kernels."""

    forward: TileConfig
    query_gradient: TileConfig
    key_gradient: TileConfig
    received: TileConfig
    attention_given: TileConfig
    position_gradient: TileConfig = TileConfig()

    @property
    def vector_multiple(self) -> int:
        """Least common multiple of all block and tile sizes. Vectors are padded to a multiple."""
        return math.lcm(*(size for config in self for size in (config.block_rows, config.columns)))

    def persist(self, *kernels: str) -> "TileConfigs":
        """Return the configurations with some persistent kernels. No name means all kernels."""
        changed = {
            name: getattr(self, name)._replace(is_persistent=True)
            for name in kernels or self._fields
        }
        return self._replace(**changed)


# SHORT, NARROW, LONG and their versions for the dot product are the fastest sizes measured on an
# H200 among those that spill few registers. The sizes for masks, segments and dropout were compared
# with few others, and those of WIDE with none.
WIDE = TileConfigs(
    forward=TileConfig(columns=128),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(),
    received=TileConfig(columns=128),
    attention_given=TileConfig(columns=128),
)
SHORT = TileConfigs(
    forward=TileConfig(warpgroups=4, stages=3),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(stages=3),
    received=TileConfig(columns=128, warpgroups=4),
    attention_given=TileConfig(columns=128, warpgroups=4),
).persist()
SHORT_DOT_PRODUCT = SHORT._replace(
    query_gradient=TileConfig(columns=128),
    key_gradient=TileConfig(columns=128, stages=3),
).persist()
# Narrow heads need fewer registers, which wider tiles can use.
NARROW = SHORT._replace(
    forward=TileConfig(columns=128, warpgroups=4),
    query_gradient=TileConfig(columns=128),
    key_gradient=TileConfig(columns=128),
).persist()
LONG = TileConfigs(
    forward=TileConfig(columns=128, warpgroups=3),
    query_gradient=TileConfig(warpgroups=3),
    key_gradient=TileConfig(stages=3, held=("key",)),
    received=TileConfig(columns=128, warpgroups=4),
    attention_given=TileConfig(columns=128, warpgroups=4, stages=3),
)
LONG_DOT_PRODUCT = LONG._replace(key_gradient=TileConfig(columns=128, stages=3)).persist(
    "forward", "query_gradient"
)
# With masks or dropout, the query gradient needs more registers than three warpgroups have.
LONG_MASKED = LONG._replace(forward=TileConfig(warpgroups=4, stages=3), query_gradient=TileConfig())
LONG_SEGMENTS = LONG._replace(forward=WIDE.forward, query_gradient=WIDE.query_gradient)
# For wide keys of which a narrow part needs a gradient, and narrow values.
SHORT_WIDE_KEYS = WIDE.persist()
LONG_WIDE_KEYS = LONG._replace(
    query_gradient=TileConfig(),
    key_gradient=TileConfig(stages=3),
    received=TileConfig(columns=128, warpgroups=3),
    attention_given=TileConfig(columns=128, warpgroups=3),
).persist("forward", "query_gradient", "key_gradient")
# For keys of which at most 128 columns need a gradient, and others do not.
VERY_WIDE_KEYS = TileConfigs(*[TileConfig()] * len(TileConfigs._fields))
# With a mask, segments or received attention, two warpgroups would need too much shared memory.
RESTRICTED_VERY_WIDE_KEYS = VERY_WIDE_KEYS._replace(key_gradient=TileConfig(warpgroups=1))
# With position vectors, tiles are square: a tile needs the vectors of exactly two blocks of 64.
# The bandwidth of shared memory limits these kernels. They hold as many matrices in registers as
# possible without spills.
POSITIONS = TileConfigs(
    forward=TileConfig(held=("query", "position_query")),
    query_gradient=TileConfig(held=("position_query",)),
    key_gradient=TileConfig(held=("key",)),
    received=TileConfig(held=("key",)),
    attention_given=TileConfig(held=("query", "position_query")),
    position_gradient=TileConfig(held=("lower_positions",)),
)
# Two warpgroups of wide heads would need too much shared memory.
ONE_WARPGROUP = TileConfig(warpgroups=1)
WIDE_POSITIONS = TileConfigs(*[ONE_WARPGROUP] * len(TileConfigs._fields))._replace(
    position_gradient=ONE_WARPGROUP._replace(stages=1)
)
LONG_POSITIONS = POSITIONS._replace(forward=TileConfig(warpgroups=3))
MAX_NARROW_WIDTH = 32  # of queries, keys and values
MAX_WIDTH = 64  # of queries, keys and values
MAX_WIDE_WIDTH = 128  # of queries and keys: wider keys have a part without gradient
MIN_LONG_LENGTH = 1024  # of queries and of keys


def is_short(operands: Operands) -> bool:
    """Return True if there are few queries or few keys."""
    return min(operands.query.shape[1], operands.key.shape[1]) < MIN_LONG_LENGTH


def select_tile_configs(plan: Plan, operands: Operands) -> TileConfigs:
    """Return the tile configurations for the arrays and the scoring of a call."""
    widest = max(operands.query.shape[-1], operands.value.shape[-1])
    if plan.scoring.has_positions:
        if widest > MAX_WIDTH:
            return WIDE_POSITIONS
        # With a mask, a third warpgroup would need too much shared memory.
        is_small = is_short(operands) or operands.mask is not None
        return POSITIONS if is_small else LONG_POSITIONS
    if operands.key.shape[-1] > MAX_WIDE_WIDTH:
        more_inputs = (operands.mask, operands.key_mask, operands.query_segments)
        has_more_inputs = plan.received or any(x is not None for x in more_inputs)
        return RESTRICTED_VERY_WIDE_KEYS if has_more_inputs else VERY_WIDE_KEYS
    if _is_dot_product(plan) and _has_wide_constant_keys(plan, operands):
        return SHORT_WIDE_KEYS if is_short(operands) else LONG_WIDE_KEYS
    if widest > MAX_WIDTH:
        # With a mask, wider tiles of the forward kernel would need too much shared memory.
        return WIDE if operands.mask is None else WIDE._replace(forward=WIDE.query_gradient)
    if is_short(operands):
        return _select_short(plan, operands, widest)
    return _select_long(plan, operands)


def _select_short(plan: Plan, operands: Operands, widest: int) -> TileConfigs:
    """Return the tile configurations for short sequences and heads up to `MAX_WIDTH`."""
    is_narrow = widest <= MAX_NARROW_WIDTH
    configs = SHORT_DOT_PRODUCT if _is_dot_product(plan) else SHORT
    if is_narrow:
        configs = NARROW
    has_window, has_dropout = plan.window != Window(), operands.dropout_words is not None
    if has_window:  # Wider tiles would contain few visible entries.
        configs = configs._replace(query_gradient=SHORT.query_gradient)
    # Wider tiles would spill registers.
    if has_window or has_dropout or (plan.received and not is_narrow):
        configs = configs._replace(key_gradient=SHORT.key_gradient)
    if operands.query_segments is not None:  # Smaller blocks skip more tiles.
        configs = configs._replace(forward=SHORT.forward._replace(warpgroups=2))
    rows = {"key_gradient": operands.key.shape[1], "received": operands.key.shape[1]}
    fitted = {
        name: _fit_warpgroups(config, rows.get(name, operands.query.shape[1]))
        for name, config in configs._asdict().items()
    }
    return TileConfigs(**fitted)


def _fit_warpgroups(config: TileConfig, length: int) -> TileConfig:
    """Return the configuration with half of the warpgroups, if half of the last block is empty."""
    if config.warpgroups == 4 and -length % config.block_rows >= config.block_rows // 2:
        return config._replace(warpgroups=2)
    return config


def _select_long(plan: Plan, operands: Operands) -> TileConfigs:
    """Return the tile configurations for long sequences and heads up to `MAX_WIDTH`.

    Persistent kernels are faster if all blocks of rows need about the same time.
    """
    has_dropout = operands.dropout_words is not None
    if operands.query_segments is not None:
        configs = LONG if _is_dot_product(plan) else LONG_SEGMENTS
        return configs if operands.mask is not None or has_dropout else configs.persist()
    if _is_dot_product(plan):
        if operands.mask is not None:
            return LONG
        if has_dropout:  # Wider tiles would spill registers.
            return LONG_DOT_PRODUCT._replace(key_gradient=TileConfig(warpgroups=3, stages=3))
        return LONG_DOT_PRODUCT
    if has_dropout:
        return LONG_MASKED
    if operands.mask is not None or operands.key_mask is not None:
        return LONG_MASKED.persist("query_gradient", "key_gradient")
    if isinstance(plan.scoring, TableScoring):
        return LONG
    return LONG.persist("forward", "attention_given")


def _is_dot_product(plan: Plan) -> bool:
    """Return True if scores are dot products without further terms."""
    return isinstance(plan.scoring, DotProductScoring) and not plan.scoring.distinctions.far


def _has_wide_constant_keys(plan: Plan, operands: Operands) -> bool:
    """Return True if keys are wide, but their gradient and the values are narrow."""
    widths = (plan.trained_key_width or operands.key.shape[-1], operands.value.shape[-1])
    is_restricted = operands.mask is not None or operands.dropout_words is not None
    return operands.key.shape[-1] > MAX_WIDTH >= max(widths) and not is_restricted
