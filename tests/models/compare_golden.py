"""Compare models with transformers: `python -m tests.models.compare_golden FOLDER...`.

Each folder must contain a model and the file expected.npz that make_golden.py wrote.
"""

import sys
from pathlib import Path

import jax
import numpy as np

from distattn_jax.models.pretrained import load


@jax.jit
def _call(model, *inputs):
    return model(*inputs, received=True, weights=True, states=True)


def compute_errors(folder: str | Path) -> dict[str, float]:
    """Return the largest absolute error of each output over valid tokens."""
    expected = dict(np.load(Path(folder) / "expected.npz"))
    tokens, lengths, types = (expected[name] for name in ("tokens", "lengths", "types"))
    encoded = _call(load(folder), tokens, lengths, types)
    is_valid = np.arange(tokens.shape[1])[None] < lengths[:, None]
    maps = np.where(is_valid[:, None, None, :, None], expected["weights"], 0)

    def largest_error(actual, expected, axis=None):
        """Return the largest error, over all entries or over the valid tokens of an axis."""
        error = np.abs(np.asarray(actual) - expected)
        return float(error.max() if axis is None else np.moveaxis(error, axis, 1)[is_valid].max())

    return {
        "values": largest_error(encoded.values, expected["states"][:, -1], axis=1),
        "states": largest_error(encoded.states, expected["states"], axis=2),
        "pooled": largest_error(encoded.pooled, expected["pooled"]),
        "maps": largest_error(encoded.weights, maps, axis=3),
        "received": largest_error(encoded.received, maps.sum(axis=3)),
    }


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    for folder in sys.argv[1:]:
        errors = ", ".join(f"{name} {error:.1e}" for name, error in compute_errors(folder).items())
        print(f"{Path(folder).name}: {errors}")
