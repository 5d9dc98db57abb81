"""Makes tests/models/golden: small models of transformers, and what they say of a few texts.

Needs transformers and torch, which nothing else here needs: `python tests/models/make_golden.py`,
or with folders of models, to write an expected.npz into each of them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

GOLDEN = Path(__file__).parent / "golden"
LENGTHS = (9, 5, 1)  # of the texts that the small models are asked about
LONGER = (100, 57, 32, 1)  # and of those for other models
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}


def models():
    """Heads of other tasks, prefixes, epsilons and activations as the published weights have."""
    yield transformers.BertForPreTraining(
        transformers.BertConfig(**SIZES, max_position_embeddings=12)
    )
    yield transformers.RobertaModel(
        transformers.RobertaConfig(
            **SIZES, max_position_embeddings=14, type_vocab_size=2, layer_norm_eps=1e-5
        )
    )
    albert = SIZES | {"num_hidden_layers": 4, "embedding_size": 8, "num_hidden_groups": 2}
    yield transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**albert, max_position_embeddings=12)
    )


def draw(model):
    """Parameters wide enough for attention that is far from even."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter += 1


def expected(folder, lengths, seed=0):
    """What transformers says of random texts of these lengths, padded on the right."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    config, longest = model.config, max(lengths)
    lengths = np.asarray(lengths)
    own = np.arange(longest)[None] < lengths[:, None]
    random = np.random.default_rng(seed)
    tokens = random.integers(3, config.vocab_size, own.shape)
    tokens = np.where(own, tokens, config.pad_token_id)
    types = np.where(own, random.integers(0, config.type_vocab_size, own.shape), 0)
    with torch.no_grad():
        given = model(
            input_ids=torch.asarray(tokens),
            attention_mask=torch.asarray(own.astype(np.int64)),
            token_type_ids=torch.asarray(types),
            output_attentions=True,
            output_hidden_states=True,
        )
    return {
        "tokens": tokens.astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "types": types.astype(np.int32),
        "states": torch.stack(given.hidden_states, 1).numpy(),
        "pooled": given.pooler_output.numpy(),
        "weights": torch.stack(given.attentions, 1).numpy(),
    }


def main(folders):
    """Small models of all families, unless folders of others are given."""
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    lengths = LONGER if folders else LENGTHS
    if not folders:
        torch.manual_seed(0)
        for model in models():
            draw(model)
            folder = GOLDEN / model.config.model_type
            model.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            folders.append(folder)
    for folder in folders:
        np.savez_compressed(Path(folder) / "expected.npz", **expected(folder, lengths))


if __name__ == "__main__":
    main(sys.argv[1:])
