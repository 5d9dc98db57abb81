"""Selection of the tile sizes and pipeline stages of each kernel of the portable form.

A kernel gets the first configuration in its table whose condition is true and with which two thread
blocks fit into the shared memory of a processor. If there is none, it gets the first configuration
with which one thread block fits. A thread block has one warpgroup.
"""

import functools

from distattn_jax.attention.fused.gpu.portable.tile_loop import allocate
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig, TileConfigs
from distattn_jax.attention.fused.gpu.tile_selection import (
    ALL,
    FORWARD,
    KEY,
    POSITION,
    QUERY,
    Facts,
    Row,
    always,
    count_shared_memory,
    list_kernels,
    report_too_large,
)
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands

H200_SHARED_MEMORY = 228 * 1024  # bytes of a processor
RESERVED = 1024  # bytes of shared memory that the GPU reserves for each thread block
config = functools.partial(TileConfig, warpgroups=1)

FEWER_LOADS = "Each number that is loaded from shared memory is used for twice as many rows."
SQUARE = "Wider tiles would spill registers, and narrower tiles load the rows more often."
REGISTERS = "Wider tiles would spill registers."
SMALLER = "It needs less shared memory than the rows above."


def _needs_registers_for_keys(facts: Facts) -> bool:
    """Return True if the kernel `key_gradient` would spill registers with 64 columns."""
    has_entries = facts.mask or facts.key_mask or facts.segments or facts.dropout
    is_simple = facts.dot_product and not (has_entries or facts.received or facts.wide)
    return not (is_simple or facts.positions)


def _needs_registers_for_queries(facts: Facts) -> bool:
    """Return True if the kernel `query_gradient` would spill registers with 64 columns."""
    has_function = facts.computed or facts.tabulated
    is_restricted = has_function and (facts.key_mask or facts.segments or facts.window)
    needs_registers = facts.relations or facts.wide or facts.mask or is_restricted
    return needs_registers and not facts.positions


def _has_free_rows(facts: Facts) -> bool:
    """Return True if the kernel `forward` has registers for tiles of 128 rows."""
    return not (facts.positions or facts.relations or facts.wide or facts.mask or facts.dropout)


# Position vectors need square tiles. The kernels with relations or position vectors need 64 rows.
TABLE = [
    Row(
        FORWARD,
        lambda c: _has_free_rows(c) and c.equal_blocks,
        config(rows=128, held=("query",)),
        FEWER_LOADS,
    ),
    Row(FORWARD, _has_free_rows, config(rows=128, columns=32, held=("query",)), REGISTERS),
    Row(FORWARD, lambda c: c.relations and c.wide, config(columns=32), REGISTERS),
    Row(KEY, _needs_registers_for_keys, config(columns=32), REGISTERS),
    Row(QUERY, lambda c: c.very_wide, config(columns=16), REGISTERS),
    Row(QUERY, _needs_registers_for_queries, config(columns=32), REGISTERS),
    Row(
        QUERY,
        lambda c: c.tabulated and c.grouped and not c.dropout,
        config(held=("query",)),
        "Loading the queries again for each tile would spill registers.",
    ),
    Row(ALL, always, config(), SQUARE),
    Row(ALL, lambda c: not c.positions, config(columns=32), SMALLER),
    Row(POSITION, always, config(), SQUARE),
    Row((*ALL, *POSITION), always, config(stages=1), SMALLER),
    Row((*ALL, *POSITION), lambda c: c.positions, config(stages=1, shares_scratch=True), SMALLER),
    Row(ALL, lambda c: not c.positions, config(columns=32, stages=1), SMALLER),
]


# On an A100 and a B200, biases would spill registers with the first row of `TABLE`.
NOT_HOPPER = [
    Row(
        FORWARD,
        lambda c: _has_free_rows(c) and not c.dot_product and c.equal_blocks,
        config(rows=128, columns=32, held=("query",)),
        REGISTERS,
    )
]
# With these rows, no case of the benchmark spills registers on a B200 or an RTX 5090, except for
# Transformer-XL.
BLACKWELL = [
    *NOT_HOPPER,
    Row(
        FORWARD,
        lambda c: _has_free_rows(c) and c.window and not c.dot_product,
        config(),
        SQUARE,
    ),
    Row(
        KEY, lambda c: c.wide and not (c.dot_product or c.positions), config(columns=16), REGISTERS
    ),
]


def select_tile_configs(
    plan: Plan, operands: Operands, shared_memory: int, *, is_blackwell: bool = False
) -> TileConfigs:
    """Return the configuration (tile sizes and stages) of each kernel of a call.

    Args:
      plan: Static options of the call.
      operands: Arrays of the call, or their types.
      shared_memory: Bytes of shared memory of a processor of the GPU.
      is_blackwell: True if the program may run on a Blackwell GPU, such as B200 or RTX 50.

    Raises:
      ValueError: If the smallest configuration of a kernel needs more shared memory.
    """
    if is_blackwell:
        table = [*BLACKWELL, *TABLE]
    else:
        table = TABLE if shared_memory >= H200_SHARED_MEMORY else [*NOT_HOPPER, *TABLE]
    configs = {
        name: _select(name, plan, operands, table, shared_memory) for name in list_kernels(plan)
    }
    return TileConfigs(**configs)


def _select(
    kernel: str, plan: Plan, operands: Operands, table: list[Row], shared_memory: int
) -> TileConfig:
    """Return the configuration of a kernel: see `select_tile_configs`.

    Args:
      table: Rows in the order of preference.
    """
    facts = Facts(kernel, plan, operands)
    rows = [row for row in table if kernel in row.kernels and row.applies(facts)]
    needed = [count_shared_memory(kernel, plan, operands, x.config, allocate) for x in rows]
    for thread_blocks in (2, 1):
        limit = shared_memory // thread_blocks - RESERVED
        for row, size in zip(rows, needed, strict=True):
            if size <= limit:
                return row.config
    raise report_too_large(kernel, limit, min(needed))
