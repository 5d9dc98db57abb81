"""Beam search and greedy search in plain Python, the oracles of the searches on the device."""

import numpy as np


def search(log_probabilities, *, beam_size, longest, end, length_penalty):
    """Return the finished hypotheses of one example, pairs of tokens and score, the best first.

    Args:
      log_probabilities: Returns the log-probability of every next token after a list of tokens.
      beam_size: Number of hypotheses.
      longest: Largest number of tokens of a hypothesis.
      end: Id of the token that ends a hypothesis.
      length_penalty: Exponent of the length penalty.
    """

    def penalty(length):
        return ((5 + length) / 6) ** length_penalty

    alive, finished = [([], 0.0)], []
    for length in range(1, longest + 1):
        candidates = [
            ([*tokens, token], total + float(log_probability))
            for tokens, total in alive
            for token, log_probability in enumerate(log_probabilities(tokens))
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        alive = []
        for tokens, total in candidates[: 2 * beam_size]:
            if tokens[-1] == end or length == longest:
                finished.append((tokens, total / penalty(length)))
            elif len(alive) < beam_size:
                alive.append((tokens, total))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[1])[:beam_size]
        if len(finished) == beam_size and (
            not alive or finished[-1][1] >= alive[0][1] / penalty(longest)
        ):
            break
    return finished


def search_greedily(log_probabilities, *, longest, end):
    """Return the tokens found by always taking the most probable one, and their log-probability."""
    tokens, total = [], 0.0
    while len(tokens) < longest and end not in tokens:
        scores = log_probabilities(tokens)
        tokens.append(int(np.argmax(scores)))
        total += float(scores[tokens[-1]])
    return tokens, total
