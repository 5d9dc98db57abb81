"""Float64 NumPy oracles of the five attentions: the printed equations, in plain Python loops.

They share no code with the package and import nothing but NumPy. One loop, `attend`, serves every
variant; a variant is a dict of keyword arguments for it, made by the factory of the same name:

    values, received, weights = attend(query, key, value, **distance_aware(...), is_causal=True)

Letters: B examples (b), T queries (i), S keys (j), N heads (n), H head width, E value width.
A gap is the position of the query minus the position of the key: gap = i + offset_b - j.
Every array of a variant leads with the head axis, of size N, or 1 when all heads share it.
"""

import numpy as np


def attend(
    query, key, value, score, *, reweigh=None, relation_value=None, mask=None, query_lengths=None,
    key_lengths=None, is_causal=False, query_offset=0, kept=None, dropout_rate=0.0,
):  # fmt: skip
    """Attention of every query to the keys it sees (Vaswani et al. 2017, eq. 1; DA, eq. 2).

        A_ij = exp(e_ij) / Σ_l exp(e_il)  over visible keys l,    then A_ij <- reweigh(A_ij)
        O_i  = Σ_j dropout(A_ij) (V_j + relation_value_ij)
        m_j  = Σ_i A_ij  (received)

    Takes query (B T N H), key (B S N H), value (B S N E), the functions of one pair
    score(n, q, k, gap), reweigh(n, weight, gap), relation_value(n, gap) -> (E,), and kept, the
    entries (B N T S) that dropout spares. Returns values (B T N E), received (B N S) and weights
    (B N T S); the last two before dropout. A row with no visible key is zero.
    """
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    (B, T, N, _), (_, S, _, E) = query.shape, value.shape
    if dropout_rate and kept is None:
        raise ValueError(f"dropout_rate={dropout_rate} needs kept, the entries it spares")
    offset = np.broadcast_to(query_offset, (B,))
    visible = visible_pairs(
        (B, N, T, S), mask, query_lengths, key_lengths, offset if is_causal else None
    )
    kept = np.broadcast_to(True if kept is None else kept, (B, N, T, S))
    values, weights = np.zeros((B, T, N, E)), np.zeros((B, N, T, S))
    for b, n, i in np.ndindex(B, N, T):
        pairs = [(j, int(i + offset[b] - j)) for j in range(S) if visible[b, n, i, j]]
        scores = [score(n, query[b, i, n], key[b, j, n], gap) for j, gap in pairs]
        for (j, gap), weight in zip(pairs, softmax(scores), strict=True):
            weights[b, n, i, j] = weight if reweigh is None else reweigh(n, weight, gap)
            relation = 0.0 if relation_value is None else relation_value(n, gap)
            if kept[b, n, i, j]:
                dropped = weights[b, n, i, j] / (1 - dropout_rate)
                values[b, i, n] += dropped * (value[b, j, n] + relation)
    return values, received_attention(weights), weights


def visible_pairs(shape, mask, query_lengths, key_lengths, causal_offset):
    """Which query may look at which key, bool (B N T S); `causal_offset` (B,) when causal."""
    visible = np.zeros(shape, bool)
    mask = np.broadcast_to(True if mask is None else mask, shape)
    for b, n, i, j in np.ndindex(shape):
        is_query = query_lengths is None or i < query_lengths[b]
        is_key = key_lengths is None or j < key_lengths[b]
        is_past = causal_offset is None or j <= i + causal_offset[b]
        visible[b, n, i, j] = mask[b, n, i, j] and is_query and is_key and is_past
    return visible


def softmax(scores):
    """The weights exp(e_j) / Σ_l exp(e_l) of a list of scores; of no scores, none."""
    exponentials = [np.exp(score - max(scores)) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def received_attention(weights):
    """What each key receives from all queries, m_j = Σ_i A_ij, (B N S)."""
    B, N, T, S = weights.shape
    received = np.zeros((B, N, S))
    for b, n, i, j in np.ndindex(B, N, T, S):
        received[b, n, j] += weights[b, n, i, j]
    return received


def of_head(n, array):
    """The float64 part of `array` that belongs to head n: its n-th, or its only one."""
    array = np.asarray(array, np.float64)
    return array[0] if len(array) == 1 else array[n]


def scaled_product(q, k):
    """P_ij = q_i · k_j / √H (DA, eq. 2)."""
    return q @ k / np.sqrt(len(q))


def sinusoid(t, width):
    """The position vector of t (Vaswani et al., section 3.5; sines first, as in Transformer-XL).

    r_t = [sin(t f_0), .., sin(t f_{width/2-1}), cos(t f_0), ..],    f_c = 10000^(-2c/width)
    """
    angles = [t * 10000.0 ** (-2 * c / width) for c in range(width // 2)]
    return np.array([np.sin(angle) for angle in angles] + [np.cos(angle) for angle in angles])


def dot_product():
    """Dot product (Vaswani et al. 2017, eq. 1; DA, eq. 2): e_ij = q_i · k_j / √H."""
    return {"score": lambda n, q, k, gap: scaled_product(q, k)}


def learnable_sigmoid(x, v):
    """f(x; v) = (1 + exp(v)) / (1 + exp(v - x)) (DA, eq. 5); 0 where exp(v - x) overflows."""
    with np.errstate(over="ignore"):
        return (1 + np.exp(v)) / (1 + np.exp(v - x))


def sigmoid(x):
    """f(x) = 1 / (1 + exp(-x)) (DA, section 4.3, number 4); 0 where exp(-x) overflows."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def exponent(x):
    """f(x) = exp(x) (DA, section 4.3, number 3); as printed, not clamped."""
    return np.exp(x)


def linear(x, k, b):
    """f(x) = k x + b (DA, section 4.3, number 2)."""
    return k * x + b


def clip(x, threshold):
    """f(x) = min(x, T) (DA, section 4.3, number 1)."""
    return min(x, threshold)


MAPPINGS = {
    "learnable_sigmoid": learnable_sigmoid,
    "sigmoid": sigmoid,
    "exponent": exponent,
    "linear": linear,
    "clip": clip,
}


def distance_aware(weight, shape, mapping, adjustment):
    """Distance-aware attention (Wu et al. 2021: DA), from P_ij and F_ij = f(w |i - j|).

        early_multiply   softmax(ReLU(P) F)    eq. 6      early_add   softmax(P + F)    section 4.4
        late_multiply    softmax(P) F   section 4.4       late_add    softmax(P) + F    section 4.4

    `shape` is what the mapping takes besides w |i - j|: v (N|1,) for learnable_sigmoid, the
    threshold T (N|1,) for clip, the pair (k, b) for linear, () for sigmoid and exponent.
    """
    shape = (shape,) if mapping in ("learnable_sigmoid", "clip") else tuple(shape)

    def coefficient(n, gap):
        return MAPPINGS[mapping](of_head(n, weight) * abs(gap), *(of_head(n, s) for s in shape))

    def multiply_score(n, q, k, gap):
        return max(scaled_product(q, k), 0.0) * coefficient(n, gap)

    def add_to_score(n, q, k, gap):
        return scaled_product(q, k) + coefficient(n, gap)

    def multiply_weight(n, weight_of_pair, gap):
        return weight_of_pair * coefficient(n, gap)

    def add_to_weight(n, weight_of_pair, gap):
        return weight_of_pair + coefficient(n, gap)

    return {
        "early_multiply": {"score": multiply_score},
        "early_add": {"score": add_to_score},
        "late_multiply": {**dot_product(), "reweigh": multiply_weight},
        "late_add": {**dot_product(), "reweigh": add_to_weight},
    }[adjustment]


def relative_position(keys, values):
    """Relative positions (Shaw et al. 2018, eqs. 3 and 4, section 3.2).

        e_ij = q_i · (k_j + a^K_ij) / √H                        (4)
        O_i  = Σ_j A_ij (V_j + a^V_ij)                          (3)
        a_ij = table[clip(j - i, k) + k],    clip(x, k) = max(-k, min(k, x))

    Tables (N|1, 2k+1, H) for the keys and (N|1, 2k+1, E) for the values; None leaves a_ij out.
    """

    def relation(table, n, gap):
        rows = of_head(n, table)
        k = (len(rows) - 1) // 2
        return rows[max(-k, min(k, -gap)) + k]

    def score(n, q, k, gap):
        return scaled_product(q, k if keys is None else k + relation(keys, n, gap))

    if values is None:
        return {"score": score}
    return {"score": score, "relation_value": lambda n, gap: relation(values, n, gap)}


def transformer_xl(projection, content_bias, position_bias):
    """Transformer-XL (Dai et al. 2019, section 3.3, terms a to d), u and v being the two biases.

        e_ij = (q·k + q·W r + u·k + v·W r) / √H = ((q + u)·k + (q + v)·W r) / √H,    r = r_{i-j}

    Projection W^T (N|1, D, H) of the sinusoid of width D; biases (N|1, H).
    """

    def score(n, q, k, gap):
        W = of_head(n, projection).T
        r = sinusoid(gap, W.shape[1])
        content = (q + of_head(n, content_bias)) @ k
        position = (q + of_head(n, position_bias)) @ (W @ r)
        return (content + position) / np.sqrt(len(q))

    return {"score": score}


def adapted(content_bias, position_bias):
    """Adapted attention (Yan et al. 2019: TENER, eqs. 17 and 18), u and v being the two biases.

        e_ij = q·k + q·r + u·k + v·r = (q + u)·k + (q + v)·r,    r = r_{i-j}

    Not scaled, r as wide as a head and not projected; biases (N|1, H).
    """

    def score(n, q, k, gap):
        r = sinusoid(gap, len(q))
        return (q + of_head(n, content_bias)) @ k + (q + of_head(n, position_bias)) @ r

    return {"score": score}
