"""Make tests/attention/golden_biases.json: buckets of T5 and slopes of ALiBi in transformers.

Requires transformers and torch. Run `python tests/attention/make_golden_biases.py`.
"""

import json
from pathlib import Path

import torch
import transformers
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

GOLDEN = Path(__file__).parent / "golden_biases.json"
LONGEST = 300
BUCKETS = ((32, 128), (32, 300), (8, 20))  # number of buckets, largest distance
HEADS = (1, 2, 6, 8, 12, 16, 40)


def find_buckets(num_buckets: int, max_distance: int, *, is_causal: bool) -> list[int]:
    """Return the buckets of the relative positions i - j from -LONGEST to LONGEST."""
    key_minus_query = -torch.arange(-LONGEST, LONGEST + 1)
    return T5Attention._relative_position_bucket(
        key_minus_query,
        bidirectional=not is_causal,
        num_buckets=num_buckets,
        max_distance=max_distance,
    ).tolist()


def find_slopes(num_heads: int) -> list[float]:
    """Return the slopes of ALiBi as BLOOM uses them: the bias of the second of two keys."""
    return build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1].tolist()


if __name__ == "__main__":
    content = {
        "transformers": transformers.__version__,
        "buckets": [
            {
                "num_buckets": num_buckets,
                "max_distance": max_distance,
                "is_causal": is_causal,
                "buckets": find_buckets(num_buckets, max_distance, is_causal=is_causal),
            }
            for num_buckets, max_distance in BUCKETS
            for is_causal in (False, True)
        ],
        "slopes": {heads: find_slopes(heads) for heads in HEADS},
    }
    GOLDEN.write_text(json.dumps(content) + "\n")
