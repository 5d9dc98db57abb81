"""How far models are from what transformers says: `python -m tests.models.compare_golden FOLDER`.

Each folder must hold a model and the expected.npz that make_golden.py wrote beside it.
"""

import sys
from pathlib import Path

import jax
import numpy as np

from distattn_jax.models.pretrained import load


def errors_of(folder: str | Path) -> dict[str, float]:
    """The largest absolute errors over what is no padding."""
    expected = dict(np.load(Path(folder) / "expected.npz"))
    tokens, lengths, types = (expected[name] for name in ("tokens", "lengths", "types"))
    encoded = load(folder)(tokens, lengths, types, received=True, weights=True, states=True)
    own = np.arange(tokens.shape[1])[None] < lengths[:, None]
    maps = np.where(own[:, None, None, :, None], expected["weights"], 0)

    def worst(actual, wanted, axis=None):
        """Of all, or of the tokens on this axis that are no padding."""
        off = np.abs(np.asarray(actual) - wanted)
        return float(off.max() if axis is None else np.moveaxis(off, axis, 1)[own].max())

    return {
        "states": worst(encoded.states, expected["states"], axis=2),
        "pooled": worst(encoded.pooled, expected["pooled"]),
        "maps": worst(encoded.weights, maps, axis=3),
        "received": worst(encoded.received, maps.sum(axis=3)),
    }


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    for folder in sys.argv[1:]:
        found = ", ".join(f"{name} {error:.1e}" for name, error in errors_of(folder).items())
        print(f"{Path(folder).name}: {found}")
