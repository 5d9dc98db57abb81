"""Tile sizes, warpgroups and pipeline stages of each kernel."""

import math
from typing import NamedTuple

import jax

from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
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
      is_persistent: If True, there are at most as many thread blocks as processors. Each of them
        computes one block of rows after the other. If False, there is one thread block for each
        block of rows.
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
        """Number of rows of a block, summed over the compute warpgroups of a thread block."""
        return self.rows * self.warpgroups


def count_processors() -> int:
    """Return the number of processors (streaming multiprocessors) of the local GPU.

    Without a local GPU, return that of an H200.
    """
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

    def make_persistent(self, *kernels: str) -> "TileConfigs":
        """Return the configurations with some persistent kernels.

        Args:
          *kernels: Names of the kernels. No name means all kernels except `position_gradient`.
        """
        names = kernels or [name for name in self._fields if name != "position_gradient"]
        return self._replace(
            **{name: getattr(self, name)._replace(is_persistent=True) for name in names}
        )


# The sizes for heads up to 64 wide are the fastest measured on an H200 among those that spill few
# registers. Those for wider heads were compared with few others.
WIDE = TileConfigs(
    forward=TileConfig(columns=128),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(),
    received=TileConfig(columns=128),
    attention_given=TileConfig(columns=128),
)
WIDE_DOT_PRODUCT = WIDE._replace(forward=TileConfig(warpgroups=3))
SHORT = TileConfigs(
    forward=TileConfig(warpgroups=4, stages=3),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(columns=128, stages=3),
    received=TileConfig(columns=128, warpgroups=4),
    attention_given=TileConfig(columns=128, warpgroups=4),
).make_persistent()
# Narrow heads need fewer registers, which wider tiles can use.
NARROW = SHORT._replace(
    forward=TileConfig(columns=128, warpgroups=4),
    query_gradient=TileConfig(columns=128),
    key_gradient=TileConfig(columns=128),
).make_persistent()
# Smaller tiles, which need fewer registers and less shared memory.
SMALL_KEY_GRADIENT = TileConfig(stages=3)
# For the dot product, and for distance functions that are read from a table.
LONG = TileConfigs(
    forward=TileConfig(warpgroups=4, stages=4),
    query_gradient=TileConfig(warpgroups=3),
    key_gradient=TileConfig(columns=128, stages=3),
    received=TileConfig(columns=128, warpgroups=4),
    attention_given=TileConfig(columns=128, warpgroups=4, stages=3),
)
LONG_RELATIONS = LONG._replace(forward=TileConfig(columns=128, warpgroups=3))
LONG_TABLE_SCORING = LONG_RELATIONS._replace(query_gradient=TileConfig(columns=128))
LONG_SMALL_KEY_GRADIENT = TileConfig(warpgroups=3, stages=3)
# For a distance function that is computed in the kernels.
LONG_COMPUTED = LONG_RELATIONS._replace(key_gradient=LONG_SMALL_KEY_GRADIENT)
LONG_SEGMENTS = LONG._replace(
    forward=TileConfig(warpgroups=4, stages=3),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(columns=128),
)
LONG_KEY_MASK = LONG_SEGMENTS._replace(key_gradient=LONG.key_gradient)
# For a mask of pairs or dropout, which need shared memory or registers.
LONG_MASKED = LONG_SEGMENTS._replace(key_gradient=TileConfig(stages=3, held=("key",)))
# For wide keys of which a narrow part needs a gradient, and narrow values.
SHORT_WIDE_KEYS = WIDE.make_persistent()
LONG_WIDE_KEYS = TileConfigs(
    forward=TileConfig(columns=128, warpgroups=3),
    query_gradient=TileConfig(),
    key_gradient=TileConfig(stages=3),
    received=TileConfig(columns=128, warpgroups=3),
    attention_given=TileConfig(columns=128, warpgroups=3),
)
# For keys wider than 128, of which at most 128 columns need a gradient.
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
    """Return True if there are fewer than `MIN_LONG_LENGTH` queries or keys."""
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
    if plan.scoring.is_dot_product and _has_wide_constant_keys(plan, operands):
        if is_short(operands):
            return SHORT_WIDE_KEYS
        if not _has_equal_blocks(plan, operands):
            return LONG_WIDE_KEYS
        return LONG_WIDE_KEYS.make_persistent("forward", "query_gradient", "key_gradient")
    if widest > MAX_WIDTH:
        if operands.mask is not None:  # Wider tiles would need too much shared memory.
            return WIDE._replace(forward=WIDE.query_gradient)
        return WIDE_DOT_PRODUCT if plan.scoring.is_dot_product else WIDE
    if is_short(operands):
        return _select_short(plan, operands, widest)
    return _select_long(plan, operands)


def _select_short(plan: Plan, operands: Operands, widest: int) -> TileConfigs:
    """Return the tile configurations for short sequences and heads up to `MAX_WIDTH`."""
    is_narrow = widest <= MAX_NARROW_WIDTH
    has_window, has_mask = plan.window != Window(), operands.mask is not None
    has_dropout = operands.dropout_words is not None
    has_segments = operands.query_segments is not None
    is_dot_product = plan.scoring.is_dot_product
    has_relations = plan.scoring.clip_distance > 0
    configs = NARROW if is_narrow else SHORT
    if not is_narrow and not has_relations and not _is_tabulated(plan):
        configs = configs._replace(query_gradient=NARROW.query_gradient)
    # Wider tiles would contain few visible entries, or need more registers or shared memory.
    has_many_tables = plan.scoring.reads_tables and has_mask
    if has_window or (has_dropout and not is_dot_product) or has_many_tables:
        configs = configs._replace(query_gradient=SHORT.query_gradient)
    needs_registers = _is_computed(plan) or has_relations or (plan.received and is_dot_product)
    if has_window or has_mask or has_dropout or has_segments or (needs_registers and not is_narrow):
        configs = configs._replace(key_gradient=SMALL_KEY_GRADIENT)
    if is_narrow and has_mask:
        configs = configs._replace(forward=SHORT.forward, key_gradient=TileConfig(warpgroups=4))
    if has_segments:  # Smaller blocks skip more tiles.
        configs = configs._replace(forward=SHORT.forward._replace(warpgroups=2))
    lengths = dict.fromkeys(("key_gradient", "received"), operands.key.shape[1])
    fitted = {
        name: _fit_warpgroups(config, operands, lengths.get(name, operands.query.shape[1]))
        for name, config in configs.make_persistent()._asdict().items()
    }
    return TileConfigs(**fitted)


def _fit_warpgroups(config: TileConfig, operands: Operands, length: int) -> TileConfig:
    """Return the configuration with two instead of four warpgroups, if this wastes less time.

    This is so if there are fewer blocks than processors, or if at least half of the last block of
    each head would be empty.

    Args:
      config: Configuration of a kernel.
      operands: Arrays of the call.
      length: Number of rows.
    """
    batch, _, heads, _ = operands.query.shape
    blocks = batch * heads * math.ceil(length / config.block_rows)
    is_half_empty = -length % config.block_rows >= config.block_rows // 2
    if config.warpgroups == 4 and (is_half_empty or blocks < count_processors()):
        return config._replace(warpgroups=2)
    return config


def _select_long(plan: Plan, operands: Operands) -> TileConfigs:
    """Return the tile configurations for long sequences and heads up to `MAX_WIDTH`."""
    is_dot_product, has_dropout = plan.scoring.is_dot_product, operands.dropout_words is not None
    has_segments = operands.query_segments is not None
    if operands.mask is not None or (has_dropout and (has_segments or not is_dot_product)):
        configs = LONG_MASKED
    elif has_segments:
        configs = LONG_SEGMENTS
    elif operands.key_mask is not None and not is_dot_product:
        configs = LONG_KEY_MASK
    else:
        return _select_unmasked(plan, operands)
    if has_dropout or has_segments or plan.window != Window():
        return configs
    # Blocks of 128 rows are small enough to divide the work of different heads evenly.
    return configs.make_persistent("query_gradient", "key_gradient")


def _select_unmasked(plan: Plan, operands: Operands) -> TileConfigs:
    """Return the tile configurations for long sequences without a mask of pairs and segments.

    The dot product may have a mask of keys.
    """
    configs = LONG
    if plan.scoring.reads_tables:
        configs = LONG_TABLE_SCORING
    elif plan.scoring.clip_distance:
        configs = LONG_RELATIONS
    elif _is_computed(plan):
        configs = LONG_COMPUTED
    # Wider tiles would spill registers with dropout, and contain few visible entries with a window.
    if operands.dropout_words is not None or plan.window.left is not None:
        configs = configs._replace(key_gradient=LONG_SMALL_KEY_GRADIENT)
    if plan.scoring.reads_tables or not _has_equal_blocks(plan, operands):
        return configs
    if plan.scoring.is_dot_product:
        return configs.make_persistent("forward", "query_gradient")
    return configs.make_persistent("forward")


def _has_equal_blocks(plan: Plan, operands: Operands) -> bool:
    """Return True if all blocks of rows visit about as many tiles.

    Persistent kernels are faster then. Otherwise the GPU distributes the blocks better: it starts
    the next thread block on the first processor that is free.
    """
    skips_tiles = operands.is_zero_beyond_radius is not None or operands.query_segments is not None
    return plan.window == Window() and not skips_tiles


def _is_tabulated(plan: Plan) -> bool:
    """Return True for a distance function that the kernels read from a table."""
    return plan.scoring.function is not None and not plan.scoring.function.is_cheap


def _is_computed(plan: Plan) -> bool:
    """Return True for a distance function that the kernels compute."""
    return plan.scoring.function is not None and plan.scoring.function.is_cheap


def _has_wide_constant_keys(plan: Plan, operands: Operands) -> bool:
    """Return True if keys are wide, but their gradient and the values are narrow."""
    widths = (plan.trained_key_width or operands.key.shape[-1], operands.value.shape[-1])
    is_restricted = operands.mask is not None or operands.dropout_words is not None
    return operands.key.shape[-1] > MAX_WIDTH >= max(widths) and not is_restricted
