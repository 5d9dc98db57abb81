"""Selection of the tile sizes, warpgroups and pipeline stages of each kernel.

These numbers are the configuration of a kernel. There are several tables of configurations, such as
`SHORT` for short sequences. A table lists configurations in the order of preference. A kernel gets
the first configuration in its table whose condition is true and whose buffers fit into shared
memory. The order was measured on an H200. Configurations that spill many registers were left out.
For heads wider than 64, few configurations were compared.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from distattn_jax.attention.fused.gpu import tile_configs
from distattn_jax.attention.fused.gpu.block_order import BlockOrder, have_uneven_work
from distattn_jax.attention.fused.gpu.kernel_types import (
    KEY_ROWS,
    computes_delta_outside,
    list_types,
)
from distattn_jax.attention.fused.gpu.shared_memory import (
    KernelTypes,
    SharedMemory,
    allocate,
    count_bytes,
)
from distattn_jax.attention.fused.gpu.tile_configs import (
    MAX_NARROW_WIDTH,
    MAX_WIDE_WIDTH,
    MAX_WIDTH,
    TileConfig,
    TileConfigs,
)
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.visible_columns import Window

HOPPER_SHARED_MEMORY = 227 * 1024  # bytes of a thread block
REDUCTION_BYTES = 2048  # Mosaic GPU reserves them for the sums and maxima of tiles
WITHOUT_REDUCTIONS = ("key_gradient", "position_gradient")


class Facts:
    """Properties of a call and of one of its kernels, on which the fastest configuration depends.

    The width of queries, keys and values is their last axis. The rows that `many_rows` counts are
    keys in the kernels `key_gradient` and `received`, and queries in the other kernels.

    Attributes:
      positions: True if the scoring has position vectors.
      dot_product: True if the score is the scaled product of query and key.
      table: True for `TableScoring`.
      two_tables: True for `TableScoring` with a table of factors and a table of biases.
      relations: True if the scoring depends on relations, which are clipped relative positions.
      multiplied: True if the kernels multiply the tables of relations: see `relation_rows`.
      tabulated: True if the kernels read the distance function from a table.
      computed: True if the kernels compute the distance function from the distances.
      mask: True if the call has a mask with one number for each pair of a query and a key.
      key_mask: True if the call has a mask of keys.
      segments: True if a query sees only keys of its own segment.
      dropout: True if the call has dropout.
      grouped: True if several heads of queries share the keys and values of a head.
      window: True if a query sees only keys in a window. A causal mask is such a window.
      left_window: True if the window limits the distance to keys before the query.
      received: True if the attention that each key receives is computed.
      narrow: True if queries, keys and values are at most 32 wide.
      wide: True if queries, keys or values are wider than 64.
      very_wide: True if queries and keys are wider than 128. The kernels support this if at most
        128 columns of the keys need a gradient.
      wide_constants: True if keys are wider than 64, but values are at most 64 wide, and at most 64
        columns of the keys need a gradient.
      short: True if there are fewer than `MIN_LONG_LENGTH` queries or keys.
      equal_blocks: True if all blocks of rows visit about the same number of tiles.
      many_rows: True if the rows of all heads make at least as many blocks of 256 rows as the GPU
        has processors (SMs), and if more than half of the last block of a head is filled.
    """

    def __init__(self, kernel: str, plan: Plan, operands: Operands):
        scoring, (batch, queries, heads, width) = plan.scoring, operands.query.shape
        keys, value_width = operands.key.shape[1], operands.value.shape[-1]
        self.positions, self.dot_product = scoring.has_positions, scoring.is_dot_product
        self.table, self.relations = bool(scoring.table_names), scoring.clip_distance > 0
        self.two_tables = len(scoring.table_names) > 1
        self.multiplied = scoring.multiplies_tables
        self.computed = scoring.function is not None and scoring.function.is_cheap
        self.tabulated = scoring.function is not None and not self.computed
        self.mask, self.key_mask = operands.mask is not None, operands.key_mask is not None
        self.segments = operands.query_segments is not None
        self.dropout = operands.dropout_words is not None
        self.grouped = operands.key.shape[2] < heads
        self.window, self.left_window = plan.window != Window(), plan.window.left is not None
        self.received = plan.received
        self.narrow = max(width, value_width) <= MAX_NARROW_WIDTH
        self.wide = max(width, value_width) > MAX_WIDTH
        self.very_wide = width > MAX_WIDE_WIDTH
        narrow_part = max(plan.trained_key_width or width, value_width)
        self.wide_constants = width > MAX_WIDTH >= narrow_part
        self.short = min(queries, keys) < tile_configs.MIN_LONG_LENGTH
        limits = (operands.is_zero_beyond_radius, operands.reach, operands.query_segments)
        self.equal_blocks = not (self.window or any(x is not None for x in limits))
        rows = keys if kernel in KEY_ROWS else queries
        is_occupied = batch * heads * math.ceil(rows / 256) >= tile_configs.count_processors()
        self.many_rows = is_occupied and -rows % 256 < 128

    @property
    def large_entries(self) -> bool:
        """True if masks or dropout need much shared memory or many registers.

        This is so for a mask with one number per query and key. It is also so for dropout with
        segments, and for dropout with a scoring other than the dot product.
        """
        return self.mask or (self.dropout and (self.segments or not self.dot_product))

    @property
    def restricted(self) -> bool:
        """True if a long call needs other configurations because of masks, segments or dropout.

        A call is long if it is not `short`. This is so for segments, and for a mask with one number
        per query and key. For scorings other than the dot product, it is also so for a mask of keys
        and for dropout.
        """
        has_entries = self.mask or self.segments
        return has_entries or (not self.dot_product and (self.key_mask or self.dropout))

    @property
    def only_dropout(self) -> bool:
        """True if the call has dropout, but no mask, no segments and no window."""
        return self.dropout and not (self.mask or self.key_mask or self.segments or self.window)

    @property
    def uneven(self) -> bool:
        """True for a window, segments or dropout, which make persistent kernels slower."""
        return self.window or self.segments or self.dropout

    @property
    def needs_registers(self) -> bool:
        """True if the kernel `key_gradient` needs more registers than for a plain dot product."""
        return self.computed or self.relations or (self.received and self.dot_product)


class Row(NamedTuple):
    """Row of a table of configurations. The rows of a table are in the order of preference.

    Attributes:
      kernels: Names of the kernels that can use the configuration.
      applies: Function of the `Facts` of a call. It returns True if the call can use the
        configuration.
      config: Tile sizes, number of warpgroups and number of pipeline stages.
      reason: Advantage over the configurations of later rows, in words.
    """

    kernels: tuple[str, ...]
    applies: Callable[[Facts], bool]
    config: TileConfig
    reason: str


def always(facts: Facts) -> bool:
    """Return True. This is the condition `Row.applies` of a configuration that suits every call."""
    return True


FORWARD, QUERY, KEY = ("forward",), ("query_gradient",), ("key_gradient",)
WEIGHTS = ("received", "attention_given")
POSITION = ("position_gradient",)
ALL = (*FORWARD, *QUERY, *KEY, *WEIGHTS)  # for scorings without position vectors
persistent = functools.partial(TileConfig, is_persistent=True)

FASTEST = "It was the fastest of all that were compared."
SMALLER = "It needs less shared memory than the rows above."
REGISTERS = "Wider tiles would need more registers or shared memory."
WINDOW = "Wider tiles would contain few visible entries."
NARROW = "Narrow heads need fewer registers, which wider tiles or more warpgroups can use."
FILLED = "Smaller blocks use more processors, or have fewer empty rows."
EQUAL = "Blocks with equal work start without a pause in a persistent kernel."
FREE = "The GPU gives the next block to the first processor that is free."
EVEN = "Blocks of 128 rows are small enough to divide the work of different heads evenly."
HELD = "The bandwidth of shared memory is the limit, and matrices in registers need none."

OVERLAP = "Two warpgroups fit into shared memory, and one computes while the other multiplies."
EARLY_INPUTS = ("query", "values_cotangent", "key", "value")  # of `position_gradient`

# Tiles are square, because a tile needs the position vectors of exactly two blocks of 64.
POSITIONS = [
    Row(FORWARD, lambda c: not (c.wide or c.short or c.mask), TileConfig(warpgroups=3), FASTEST),
    Row(
        ("forward", "attention_given"),
        lambda c: not c.wide,
        TileConfig(held=("query", "position_query")),
        HELD,
    ),
    Row(QUERY, lambda c: not c.wide, TileConfig(held=("position_query",)), HELD),
    Row(KEY_ROWS, lambda c: not c.wide, TileConfig(held=("key",)), HELD),
    Row(POSITION, lambda c: not c.wide, TileConfig(held=("lower_positions",)), HELD),
    Row(("forward", "attention_given"), always, TileConfig(), OVERLAP),
    Row(("forward", "attention_given"), always, TileConfig(single=("positions",)), SMALLER),
    Row(QUERY, always, TileConfig(single=("value",)), OVERLAP),
    Row(QUERY, always, TileConfig(single=("value", "positions")), SMALLER),
    Row(KEY_ROWS, always, TileConfig(single=("position_query", "positions")), OVERLAP),
    Row((*ALL, *POSITION), always, TileConfig(warpgroups=1), SMALLER),
    Row(POSITION, always, TileConfig(single=EARLY_INPUTS), OVERLAP),
]
VERY_WIDE = [
    Row(
        KEY,
        lambda c: c.mask or c.key_mask or c.segments or c.received,
        TileConfig(warpgroups=1),
        "More warpgroups would need more shared memory, and too much for values 128 wide.",
    ),
    Row(ALL, always, TileConfig(), FASTEST),
    Row(ALL, always, TileConfig(warpgroups=1), SMALLER),
]
WIDE_CONSTANTS = [
    Row((*FORWARD, *WEIGHTS), lambda c: c.short, persistent(columns=128), FASTEST),
    Row((*QUERY, *KEY), lambda c: c.short, persistent(), REGISTERS),
    Row(FORWARD, lambda c: c.equal_blocks, persistent(columns=128, warpgroups=3), EQUAL),
    Row((*FORWARD, *WEIGHTS), always, TileConfig(columns=128, warpgroups=3), FASTEST),
    Row(QUERY, lambda c: c.equal_blocks, persistent(), EQUAL),
    Row(KEY, lambda c: c.equal_blocks, persistent(stages=3), EQUAL),
    Row(KEY, always, TileConfig(stages=3), FREE),
    Row(ALL, always, TileConfig(), SMALLER),
]
WIDE = [
    Row(FORWARD, lambda c: c.dot_product and not c.mask, TileConfig(warpgroups=3), FASTEST),
    Row(FORWARD, lambda c: not c.mask, TileConfig(columns=128), FASTEST),
    Row(WEIGHTS, always, TileConfig(columns=128), FASTEST),
    Row(ALL, always, TileConfig(), SMALLER),
]
SHORT = [
    Row(FORWARD, lambda c: c.segments, persistent(stages=3), "Smaller blocks skip more tiles."),
    Row(
        FORWARD,
        lambda c: c.narrow and c.many_rows and not (c.mask or c.multiplied),
        persistent(columns=128, warpgroups=4),
        NARROW,
    ),
    Row(
        FORWARD,
        lambda c: c.narrow and not c.mask and not (c.multiplied and c.many_rows),
        persistent(columns=128),
        FILLED,
    ),
    Row(FORWARD, lambda c: c.many_rows, persistent(warpgroups=4, stages=3), FASTEST),
    Row(FORWARD, always, persistent(stages=3), FILLED),
    Row(QUERY, lambda c: c.window, persistent(), WINDOW),
    Row(QUERY, lambda c: c.dropout and not (c.dot_product or c.narrow), persistent(), REGISTERS),
    Row(QUERY, lambda c: c.mask and c.table, persistent(), REGISTERS),
    Row(QUERY, lambda c: not c.narrow and (c.tabulated or c.relations), persistent(), REGISTERS),
    Row(
        QUERY,
        lambda c: c.multiplied and c.many_rows and not c.mask,
        persistent(warpgroups=4),
        NARROW,
    ),
    Row(QUERY, always, persistent(columns=128), FASTEST),
    Row(KEY, lambda c: c.narrow and c.mask and c.many_rows, persistent(warpgroups=4), NARROW),
    Row(KEY, lambda c: c.narrow and c.mask, persistent(), FILLED),
    Row(KEY, lambda c: c.window, persistent(stages=3), WINDOW),
    Row(KEY, lambda c: c.mask or c.segments, persistent(stages=3), REGISTERS),
    Row(KEY, lambda c: c.dropout and not c.narrow, persistent(stages=3), REGISTERS),
    Row(KEY, lambda c: c.needs_registers and not c.narrow, persistent(stages=3), REGISTERS),
    Row(KEY, lambda c: c.multiplied, persistent(), REGISTERS),
    Row(KEY, lambda c: c.narrow, persistent(columns=128), FASTEST),
    Row(KEY, always, persistent(columns=128, stages=3), FASTEST),
    Row(WEIGHTS, lambda c: c.many_rows, persistent(columns=128, warpgroups=4), FASTEST),
    Row(WEIGHTS, always, persistent(columns=128), FILLED),
    Row(ALL, always, persistent(), SMALLER),
    Row(ALL, always, TileConfig(), SMALLER),
]
LONG = [
    Row(FORWARD, lambda c: c.restricted, TileConfig(warpgroups=4, stages=3), REGISTERS),
    Row(FORWARD, lambda c: c.table, TileConfig(columns=128, warpgroups=3), FASTEST),
    Row(
        FORWARD,
        lambda c: c.tabulated and not c.window,
        TileConfig(columns=128, warpgroups=3, held=("query",)),
        HELD,
    ),
    Row(
        FORWARD,
        lambda c: (c.relations or c.computed) and c.equal_blocks,
        persistent(columns=128, warpgroups=3),
        EQUAL,
    ),
    Row(FORWARD, lambda c: c.relations or c.computed, TileConfig(columns=128, warpgroups=3), FREE),
    Row(FORWARD, lambda c: c.relations, TileConfig(columns=128), SMALLER),
    Row(FORWARD, lambda c: c.equal_blocks, persistent(warpgroups=4, stages=4), EQUAL),
    Row(FORWARD, always, TileConfig(warpgroups=4, stages=4), FREE),
    Row(QUERY, lambda c: c.only_dropout and not c.two_tables, TileConfig(columns=128), FASTEST),
    Row(QUERY, lambda c: c.restricted and not c.uneven, persistent(), EVEN),
    Row(QUERY, lambda c: c.restricted, TileConfig(), REGISTERS),
    Row(QUERY, lambda c: c.table, TileConfig(columns=128), FASTEST),
    Row(QUERY, lambda c: c.tabulated and not c.window, TileConfig(columns=128), FASTEST),
    Row(QUERY, lambda c: c.dot_product and c.equal_blocks, persistent(warpgroups=3), EQUAL),
    Row(QUERY, always, TileConfig(warpgroups=3), FREE),
    Row(KEY, lambda c: c.large_entries and not c.uneven, persistent(stages=3, held=("key",)), EVEN),
    Row(KEY, lambda c: c.large_entries, TileConfig(stages=3, held=("key",)), REGISTERS),
    Row(KEY, lambda c: c.multiplied, TileConfig(stages=3), REGISTERS),
    Row(KEY, lambda c: c.segments, TileConfig(columns=128), FASTEST),
    Row(KEY, lambda c: c.restricted and not c.uneven, persistent(columns=128, stages=3), EVEN),
    Row(KEY, lambda c: c.restricted, TileConfig(columns=128, stages=3), FASTEST),
    Row(KEY, lambda c: c.dropout or c.computed, TileConfig(warpgroups=3, stages=3), REGISTERS),
    Row(KEY, lambda c: c.left_window, TileConfig(warpgroups=3, stages=3), WINDOW),
    Row(KEY, always, TileConfig(columns=128, stages=3), FASTEST),
    Row(("received",), always, TileConfig(columns=128, warpgroups=4), FASTEST),
    Row(("attention_given",), always, TileConfig(columns=128, warpgroups=4, stages=3), FASTEST),
    Row(ALL, always, TileConfig(), SMALLER),
]
SMALLER_ROWS = Row(ALL, lambda c: c.relations, TileConfig(warpgroups=1), SMALLER)
SMALLEST = Row((*ALL, *POSITION), always, TileConfig(warpgroups=1, stages=1), SMALLER)
TABLES: list[tuple[Callable[[Facts], bool], list[Row]]] = [
    (lambda c: c.positions, POSITIONS),
    (lambda c: c.very_wide, VERY_WIDE),
    (lambda c: c.dot_product and c.wide_constants and not (c.mask or c.dropout), WIDE_CONSTANTS),
    (lambda c: c.wide, WIDE),
    (lambda c: c.short, SHORT),
    (always, LONG),
]


def select_tile_configs(
    plan: Plan, operands: Operands, limit: int = HOPPER_SHARED_MEMORY
) -> TileConfigs:
    """Return the configuration (tile sizes, warpgroups and stages) of each kernel of a call.

    Args:
      plan: Static options of the call.
      operands: Arrays of the call, or their types.
      limit: Number of bytes of shared memory that a thread block may use.

    Raises:
      ValueError: If the smallest configuration of a kernel needs more than `limit` bytes.
    """
    kernels = list_kernels(plan)
    return TileConfigs(**{name: _select(name, plan, operands, limit) for name in kernels})


def list_kernels(plan: Plan) -> tuple[str, ...]:
    """Return the names of the kernels of a call."""
    return (*ALL, *POSITION) if plan.scoring.has_positions else ALL


def _select(kernel: str, plan: Plan, operands: Operands, limit: int) -> TileConfig:
    """Return the configuration of a kernel: see `select_tile_configs`.

    Args:
      kernel: Name of the kernel.
    """
    facts, needed = Facts(kernel, plan, operands), 0
    table = next(rows for applies, rows in TABLES if applies(facts))
    for row in (*table, SMALLER_ROWS, SMALLEST):
        if kernel in row.kernels and row.applies(facts):
            needed = count_shared_memory(kernel, plan, operands, row.config)
            if needed <= limit:
                return row.config
    raise report_too_large(kernel, limit, needed)


def report_too_large(kernel: str, limit: int, needed: int) -> ValueError:
    """Return the error for a kernel whose smallest tiles need too much shared memory."""
    return ValueError(
        f"the kernel {kernel} must fit into {limit} bytes of shared memory; its smallest tiles "
        f"need {needed}"
    )


def count_shared_memory(
    kernel: str,
    plan: Plan,
    operands: Operands,
    config: TileConfig,
    allocate: Callable[[KernelTypes, TileConfig, int], SharedMemory] = allocate,
) -> int:
    """Return the bytes of shared memory that a thread block of a kernel needs.

    This is the number that Mosaic GPU requests.

    Args:
      kernel: Name of the kernel.
      allocate: Returns the types of the buffers. The default is that of the Hopper form.
    """
    batch, _, heads, _ = operands.query.shape
    rows = (operands.key if kernel in KEY_ROWS else operands.query).shape[1]
    blocks = math.ceil(rows / config.block_rows)
    sums_tables = kernel == "query_gradient" and bool(plan.scoring.table_names)
    is_uneven = sums_tables and have_uneven_work(operands)
    row_slots = BlockOrder(config, batch, heads, blocks, sums_tables, is_uneven).row_slots
    types = list_types(kernel, plan, operands, config)
    buffers = count_bytes(allocate(types, config, row_slots))
    return buffers + (REDUCTION_BYTES if _reduces_tiles(kernel, plan, operands) else 0)


def _reduces_tiles(kernel: str, plan: Plan, operands: Operands) -> bool:
    """Return True if a kernel computes sums or maxima of the rows of a tile."""
    if kernel == "query_gradient" and computes_delta_outside(plan, operands):
        return bool(plan.scoring.gradient_names) or plan.scoring.has_relation_products
    return kernel not in WITHOUT_REDUCTIONS
