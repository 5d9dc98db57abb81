"""What the fused passes are given: arrays for every head of every example, and a plan."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.fused.scoring import Scoring


class Operands(NamedTuple):
    """All arrays. Only the first four have gradients.

    Attributes:
      query: its width, and those of key and value, must be 16, 32 or 64; 16-bit floats.
      key: as many heads as the query.
      value: its width may differ.
      coefficients: of the scoring.
      query_lengths: queries from there on ask nothing.
      key_lengths: keys from there on are not seen.
      offset: position of query 0 minus that of key 0.
      words: of the dropout hash, for queries and for keys, and its threshold.
      scale: 1 / (1 - rate of dropout); None, as `words`: there is no dropout.
      radius: from which distance on f is a constant, and
      skips: whether that makes every score 0; both None: f is evaluated everywhere.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S N H"]
    value: Float[Array, "B S N E"]
    coefficients: Float[Array, "B N C"]
    query_lengths: Int[Array, " B"]
    key_lengths: Int[Array, " B"]
    offset: Int[Array, " B"]
    words: UInt32[Array, "B N 3"] | None = None
    scale: Float[Array, "B N 1"] | None = None
    radius: Int[Array, "B N"] | None = None
    skips: Bool[Array, "B N"] | None = None


class BackwardOperands(NamedTuple):
    """Arrays that the backward kernels read besides the operands.

    Attributes:
      values: Cotangent of the values.
      received: Cotangent of the received attention, or None if the loss does not use it.
      logsumexp: Logsumexp of each query to base 2. Its last axis may be padded.
      negative_delta: -(dO_i · O_i + Σ_j A_ij g_j) for each query i.
    """

    values: Float[Array, "B T N E"]
    received: Float[Array, "B N _"] | None
    logsumexp: Float[Array, "B N _"]
    negative_delta: Float[Array, "B N _"]


class Plan(NamedTuple):
    """What is decided before tracing.

    Attributes:
      scoring: what makes scores of products.
      is_causal: whether later keys are invisible.
      received: whether what each key receives is wanted.
      tolerance: by how much a score may be off where f is taken for a constant; 0: it never is.
    """

    scoring: Scoring
    is_causal: bool
    received: bool
    tolerance: float
