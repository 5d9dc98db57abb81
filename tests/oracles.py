"""Float64 NumPy oracles of the six attention variants and of rotary positions, in plain loops.

They share no code with the package and import nothing but NumPy. The loop `attend` computes every
variant. A variant is a dict of keyword arguments for `attend`, made by the function of its name:

    values, received, weights, logsumexp = attend(
        query, key, value, **distance_aware(...), is_causal=True
    )

Letters: B examples (b), T queries (i), S keys (j), N heads (n), K key heads, H head width, E value
width.
The relative position of query i and key j is i + offset_b - j. Every array of a variant leads with
the head axis, of size N, or 1 if all heads share the array.
"""

import numpy as np


def attend(
    query, key, value, score, *, default_scale=None, adjust_weight=None, added_value=None,
    mask=None, query_lengths=None, key_lengths=None, is_causal=False, query_offset=0, scale=None,
    local_window_size=None, query_segments=None, key_segments=None, kept=None, dropout_rate=0.0,
):  # fmt: skip
    """Compute attention of every query over its visible keys (Vaswani et al. 2017, eq. 1).

        A_ij = exp(e_ij) / Σ_l exp(e_il)  over visible keys l,    then A_ij <- adjust_weight(A_ij)
        O_i  = Σ_j dropout(A_ij) (V_j + added_value_ij)
        m_j  = Σ_i A_ij  (received)
        L_i  = log Σ_j exp(e_ij)  (logsumexp)

    Args:
      query: Queries, shape (B, T, N, H).
      key: Keys, shape (B, S, K, H). Query head n attends to key head n // (N / K).
      value: Values, shape (B, S, K, E).
      score: Function of (n, q, k, relative_position, scale) that returns the score of one pair.
      default_scale: Scale of the scores if `scale` is None. None means 1/√H.
      adjust_weight: Function of (n, weight, relative_position) that returns the new weight.
      added_value: Function of (n, relative_position) that returns a vector (E,) to add to the
        value.
      mask: True where a query may attend to a key, broadcastable to (B, N, T, S).
      query_lengths: Number of queries of each example before the padding.
      key_lengths: Number of keys of each example before the padding.
      is_causal: Key j is visible to query i only if j <= i + query_offset.
      query_offset: Position of the first query minus that of the first key, () or (B,).
      scale: Factor of the products of queries and keys.
      local_window_size: Pair (left, right): a key is visible at most `left` positions before the
        query and at most `right` positions after the query.
      query_segments: Segment of each query, shape (B, T). Only keys of this segment are visible.
      key_segments: Segment of each key, shape (B, S).
      kept: True for the entries that dropout keeps, shape (B, N, T, S).
      dropout_rate: Probability of dropping a weight.

    Returns:
      values (B, T, N, E), received (B, N, S), weights (B, N, T, S) and logsumexp (B, N, T), the
      last three before dropout. In a row without a visible key the logsumexp is -inf, and all other
      outputs are zero.
    """
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    (B, T, N, _), (_, S, _, E) = query.shape, value.shape
    if dropout_rate and kept is None:
        raise ValueError(f"dropout_rate={dropout_rate} requires kept; got None.")
    offset = np.broadcast_to(query_offset, (B,))
    scale = scale or default_scale or 1 / np.sqrt(query.shape[-1])
    group = N // key.shape[2]
    visible = visible_pairs(
        (B, N, T, S), mask, query_lengths, key_lengths, offset if is_causal else None
    )
    visible &= near_pairs((B, N, T, S), offset, local_window_size, query_segments, key_segments)
    kept = np.broadcast_to(True if kept is None else kept, (B, N, T, S))
    values, weights = np.zeros((B, T, N, E)), np.zeros((B, N, T, S))
    logsumexp = np.full((B, N, T), -np.inf)
    for b, n, i in np.ndindex(B, N, T):
        pairs = [(j, int(i + offset[b] - j)) for j in range(S) if visible[b, n, i, j]]
        scores = [
            score(n, query[b, i, n], key[b, j, n // group], relative, scale)
            for j, relative in pairs
        ]
        if scores:
            logsumexp[b, n, i] = max(scores) + np.log(sum(np.exp(np.array(scores) - max(scores))))
        for (j, relative), weight in zip(pairs, softmax(scores), strict=True):
            if adjust_weight is not None:
                weight = adjust_weight(n, weight, relative)
            weights[b, n, i, j] = weight
            added = 0.0 if added_value is None else added_value(n, relative)
            if kept[b, n, i, j]:
                values[b, i, n] += weight / (1 - dropout_rate) * (value[b, j, n // group] + added)
    return values, received_attention(weights), weights, logsumexp


def visible_pairs(shape, mask, query_lengths, key_lengths, causal_offset):
    """Return True where a query may attend to a key, shape (B, N, T, S).

    `causal_offset` (B,) is the query offset of each example, or None without a causal mask.
    """
    visible = np.zeros(shape, bool)
    mask = np.broadcast_to(True if mask is None else mask, shape)
    for b, n, i, j in np.ndindex(shape):
        is_query = query_lengths is None or i < query_lengths[b]
        is_key = key_lengths is None or j < key_lengths[b]
        is_past = causal_offset is None or j <= i + causal_offset[b]
        visible[b, n, i, j] = mask[b, n, i, j] and is_query and is_key and is_past
    return visible


def near_pairs(shape, offset, local_window_size, query_segments, key_segments):
    """Return True where window and segments let a query attend to a key, shape (B, N, T, S)."""
    near = np.ones(shape, bool)
    for b, n, i, j in np.ndindex(shape):
        relative = i + offset[b] - j
        if local_window_size is not None:
            left, right = local_window_size
            near[b, n, i, j] &= -right <= relative <= left
        if query_segments is not None:
            near[b, n, i, j] &= query_segments[b, i] == key_segments[b, j]
    return near


def softmax(scores):
    """Return the list exp(e_j) / Σ_l exp(e_l) for a list of scores, which may be empty."""
    exponentials = [np.exp(score - max(scores)) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def received_attention(weights):
    """Return the attention that each key receives, m_j = Σ_i A_ij, shape (B, N, S)."""
    B, N, T, S = weights.shape
    received = np.zeros((B, N, S))
    for b, n, i, j in np.ndindex(B, N, T, S):
        received[b, n, j] += weights[b, n, i, j]
    return received


def select_head(array, n):
    """Return the float64 entry of head n, or the only entry of an array that all heads share."""
    array = np.asarray(array, np.float64)
    return array[0] if len(array) == 1 else array[n]


def sinusoid(t, width):
    """Return the position vector of t (Vaswani et al., section 3.5), sines first.

    r_t = [sin(t f_0), .., sin(t f_{width/2-1}), cos(t f_0), ..],    f_c = 10000^(-2c/width)
    """
    angles = [t * 10000.0 ** (-2 * c / width) for c in range(width // 2)]
    return np.array([np.sin(angle) for angle in angles] + [np.cos(angle) for angle in angles])


def dot_product():
    """Return arguments of `attend` for e_ij = q_i · k_j / √H (Vaswani et al. 2017, eq. 1)."""
    return {"score": lambda n, q, k, relative, scale: scale * (q @ k)}


def learnable_sigmoid(x, v):
    """Return (1 + exp(v)) / (1 + exp(v - x)), or 0 on overflow (Wu et al. 2021, eq. 5)."""
    with np.errstate(over="ignore"):
        return (1 + np.exp(v)) / (1 + np.exp(v - x))


def sigmoid(x):
    """Return 1 / (1 + exp(-x)), or 0 on overflow (Wu et al. 2021, section 4.3, number 4)."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def exponent(x):
    """Return exp(x), as printed and not clamped (Wu et al. 2021, section 4.3, number 3)."""
    return np.exp(x)


def linear(x, k, b):
    """Return k x + b (Wu et al. 2021, section 4.3, number 2)."""
    return k * x + b


def clip(x, threshold):
    """Return min(x, threshold) (Wu et al. 2021, section 4.3, number 1)."""
    return min(x, threshold)


MAPPINGS = {
    "learnable_sigmoid": learnable_sigmoid,
    "sigmoid": sigmoid,
    "exponent": exponent,
    "linear": linear,
    "clip": clip,
}


def distance_aware(weight, shape, mapping, adjustment):
    """Return arguments of `attend` for distance-aware attention (Wu et al. 2021).

    P_ij = q_i · k_j / √H, F_ij = f(w |i - j|):

        early_multiply   softmax(ReLU(P) F)    eq. 6      early_add   softmax(P + F)    section 4.4
        late_multiply    softmax(P) F   section 4.4       late_add    softmax(P) + F    section 4.4

    Args:
      weight: w of each head, shape (N,) or (1,).
      shape: Parameters of the mapping, each (N,) or (1,): v for learnable_sigmoid, the threshold T
        for clip, the pair (k, b) for linear, () for sigmoid and exponent.
      mapping: Name of f.
      adjustment: Name of one of the four equations.
    """
    shape = (shape,) if mapping in ("learnable_sigmoid", "clip") else tuple(shape)

    def coefficient(n, relative):
        x = select_head(weight, n) * abs(relative)
        return MAPPINGS[mapping](x, *(select_head(parameter, n) for parameter in shape))

    def multiply_score(n, q, k, relative, scale):
        return max(scale * (q @ k), 0.0) * coefficient(n, relative)

    def add_to_score(n, q, k, relative, scale):
        return scale * (q @ k) + coefficient(n, relative)

    def multiply_weight(n, attention_weight, relative):
        return attention_weight * coefficient(n, relative)

    def add_to_weight(n, attention_weight, relative):
        return attention_weight + coefficient(n, relative)

    return {
        "early_multiply": {"score": multiply_score},
        "early_add": {"score": add_to_score},
        "late_multiply": {**dot_product(), "adjust_weight": multiply_weight},
        "late_add": {**dot_product(), "adjust_weight": add_to_weight},
    }[adjustment]


def relative_position(keys, values):
    """Return arguments of `attend` for relative positions (Shaw et al. 2018, eqs. 3 and 4).

        e_ij = q_i · (k_j + a^K_ij) / √H                        (4)
        O_i  = Σ_j A_ij (V_j + a^V_ij)                          (3)
        a_ij = table[clip(j - i, k) + k],    clip(x, k) = max(-k, min(k, x))

    Args:
      keys: Table of a^K, shape (N or 1, 2k+1, H). None leaves out a^K.
      values: Table of a^V, shape (N or 1, 2k+1, E). None leaves out a^V.
    """

    def look_up(table, n, relative):
        rows = select_head(table, n)
        k = (len(rows) - 1) // 2
        return rows[max(-k, min(k, -relative)) + k]

    def score(n, q, k, relative, scale):
        return scale * (q @ (k if keys is None else k + look_up(keys, n, relative)))

    if values is None:
        return {"score": score}
    return {"score": score, "added_value": lambda n, relative: look_up(values, n, relative)}


def transformer_xl(projection, content_bias, position_bias):
    """Return arguments of `attend` for Transformer-XL (Dai et al. 2019, section 3.3, a to d).

        e_ij = (q·k + q·W r + u·k + v·W r) / √H = ((q + u)·k + (q + v)·W r) / √H,    r = r_{i-j}

    Args:
      projection: Transpose of W, shape (N or 1, D, H), for sinusoids r of width D.
      content_bias: u, shape (N or 1, H).
      position_bias: v, shape (N or 1, H).
    """

    def score(n, q, k, relative, scale):
        W = select_head(projection, n).T
        r = sinusoid(relative, W.shape[1])
        content = (q + select_head(content_bias, n)) @ k
        position = (q + select_head(position_bias, n)) @ (W @ r)
        return scale * (content + position)

    return {"score": score}


def adapted(content_bias, position_bias):
    """Return arguments of `attend` for TENER (Yan et al. 2019, eqs. 17 and 18), unscaled.

        e_ij = q·k + q·r + u·k + v·r = (q + u)·k + (q + v)·r,    r = r_{i-j} of width H

    Args:
      content_bias: u, shape (N or 1, H).
      position_bias: v, shape (N or 1, H).
    """

    def score(n, q, k, relative, scale):
        r = sinusoid(relative, len(q))
        content = (q + select_head(content_bias, n)) @ k
        return scale * (content + (q + select_head(position_bias, n)) @ r)

    return {"score": score, "default_scale": 1.0}


def alibi(d, slope):
    """Return -slope |d| (Press et al. 2022, section 3)."""
    return -slope * abs(d)


def kerple_log(d, r1, r2):
    """Return -r1 log(1 + r2 |d|) (Chi et al. 2022)."""
    return -r1 * np.log(1 + r2 * abs(d))


def kerple_power(d, r1, r2):
    """Return -r1 |d|^r2 (Chi et al. 2022)."""
    return -r1 * abs(d) ** r2


def t5_bucket(d, buckets, max_distance, causal):
    """Return the bucket of the relative position d = i - j (Raffel et al. 2020, section 2.1).

    Keys after the query use the second half of the buckets, or bucket 0 in causal attention. On
    each side, half of the buckets hold one distance each. The others grow logarithmically up to
    `max_distance`, and the last one holds all larger distances.
    """
    first = 0
    if causal:
        d = max(d, 0)
    else:
        buckets //= 2
        first = buckets if d < 0 else 0
        d = abs(d)
    exact = buckets // 2
    if d < exact:
        return first + d
    share = np.log(d / exact) / np.log(max_distance / exact)
    # The small number undoes rounding where the exact position is an integer.
    return first + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


def distance_bias(bias, *parameters):
    """Return arguments of `attend` for e_ij = q_i · k_j / √H + bias(i - j, *parameters of head n).

    Args:
      bias: Function of one relative position and the parameters of one head.
      *parameters: Parameters, each with a leading head axis of size N or 1.
    """

    def score(n, q, k, relative, scale):
        return scale * (q @ k) + bias(relative, *(select_head(x, n) for x in parameters))

    return {"score": score}


def constant(relative, c):
    """Return c for all keys but the query's own."""
    return 0.0 if relative == 0 else c


def two_sided(weight, shape, mapping, biases, rectify):
    """Return arguments of `attend` for e_ij = φ(q_i · k_j / √H) f_s(w_s |i - j|) + g_s(|i - j|).

    s is 0 for a key at or before the query, and 1 for a key after it.

    Args:
      weight: w of each head and side, shape (N, 2) or (1, 2). None means f = 1.
      shape: Parameters of the mapping, each (N, 2) or (1, 2).
      mapping: Name of f.
      biases: Pairs of a function of one distance, and its parameters, each (N, 2, ...). Their sum
        is g.
      rectify: True if φ is ReLU, False if φ is the identity.
    """

    def score(n, q, k, relative, scale):
        side, distance = (0, relative) if relative >= 0 else (1, -relative)
        e = scale * (q @ k)
        if rectify:
            e = max(e, 0.0)
        if weight is not None:
            x = select_head(weight, n)[side] * distance
            e *= MAPPINGS[mapping](x, *(select_head(v, n)[side] for v in shape))
        for bias, parameters in biases:
            e += bias(distance, *(select_head(x, n)[side] for x in parameters))
        return e

    return {"score": score}


def rotate(x, positions, base, width, linear_factor=1.0, ntk_factor=1.0, interleaved=False):
    """Return queries or keys (B, T, N, H), rotated by their positions (Su et al. 2021, eq. 15).

    Pair c of the first `width` numbers is multiplied by the matrix [[cos, -sin], [sin, cos]] of the
    angle t f_c. The pair is (x_2c, x_2c+1) as in the paper, or (x_c, x_c+width/2) as in Llama.

        f_c = b^(-2c/width) / linear_factor,    b = base ntk_factor^(width / (width - 2))

    Args:
      x: Queries or keys.
      positions: Position t of each query or key, shape (B, T).
      base: Base of the frequencies.
      width: Number of rotated numbers.
      linear_factor: Divisor of the positions.
      ntk_factor: Factor that stretches the lowest frequency.
      interleaved: Selects the pairs of the paper.
    """
    x = np.asarray(x, np.float64)
    rotated = x.copy()
    b = base * ntk_factor ** (width / (width - 2))
    for i, t, n, c in np.ndindex(*x.shape[:3], width // 2):
        angle = positions[i][t] / linear_factor * b ** (-2 * c / width)
        first, second = (2 * c, 2 * c + 1) if interleaved else (c, c + width // 2)
        old = x[i, t, n, first], x[i, t, n, second]
        rotated[i, t, n, first] = old[0] * np.cos(angle) - old[1] * np.sin(angle)
        rotated[i, t, n, second] = old[0] * np.sin(angle) + old[1] * np.cos(angle)
    return rotated
