"""Float64 NumPy oracles of the guides: the printed equations in plain Python loops."""

import numpy as np


def unit_maps(received, lengths, layers):
    """Yield the received attention of each example, one row of norm 1 (or 0) for each head."""
    for b, length in enumerate(lengths):
        rows = []
        for layer in layers:
            for row in np.asarray(received[b, layer], np.float64):
                row = row[:length]
                norm = np.sqrt(sum(x * x for x in row))
                rows.append(row / norm if norm > 0 else row)
        yield rows


def map_discrimination(received, lengths, layers, scaling, temperature):
    """Return the map discrimination loss -Σ_r log P(r | m_r) of each example (eq. 10 and 11)."""
    losses = []
    for rows, length in zip(unit_maps(received, lengths, layers), lengths, strict=True):
        total = 0.0
        for row in rows:
            denominator = sum(np.exp(other @ row / temperature) for other in rows)
            total -= np.log(np.exp(row @ row / temperature) / denominator)
        if scaling == "mean":
            total /= len(rows)
        losses.append(total if length else 0.0)
    return np.array(losses)


def pattern_decorrelation(received, lengths, layers, scaling):
    """Return the pattern decorrelation loss ‖MᵀM - I‖²_F of each example (eq. 12)."""
    losses = []
    for rows, length in zip(unit_maps(received, lengths, layers), lengths, strict=True):
        total = 0.0
        for j, other in np.ndindex(length, length):
            total += (sum(row[j] * row[other] for row in rows) - (j == other)) ** 2
        losses.append(total / max(length, 1) if scaling == "mean" else total)
    return np.array(losses)


def pattern_loss(weights, rows, target, lengths, layers, heads):
    """Return the mean squared distance of attention and target over queries with a target."""
    losses = []
    for b, length in enumerate(lengths):
        distances = []
        for layer in layers:
            for n in heads:
                for i in range(length):
                    if rows[b, i]:
                        error = np.asarray(weights[b, layer, n, i], np.float64) - target[b, i]
                        distances.append(sum(x * x for x in error[:length]))
        losses.append(np.mean(distances) if distances else 0.0)
    return np.array(losses)


def target(lengths, size, score):
    """Return the fields of the `Target` that normalizes score(b, i, j) over the keys j."""
    weights = np.zeros((len(lengths), size, size))
    for b, length in enumerate(lengths):
        for i in range(length):
            scores = [max(0.0, score(b, i, j)) for j in range(length)]
            if sum(scores) > 0:
                weights[b, i, :length] = np.array(scores) / sum(scores)
    return weights.sum(axis=-1) > 0, weights
