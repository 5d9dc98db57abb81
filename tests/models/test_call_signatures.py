"""The keyword arguments of calls are listed in the signatures of encoders, decoders and models."""

import inspect

import pytest

from distattn_jax import models
from distattn_jax.modules import Decoder, Encoder

DROPOUT = ["dropout_rate", "rngs"]
ATTENTION = ["received", "weights"]
KEYWORDS = {
    Encoder: ["lengths", "segments", "mask", "is_causal", "memory", *DROPOUT, *ATTENTION],
    Decoder: ["lengths", "caches", "cross_key_values", "cross_lengths", *DROPOUT, "weights"],
    models.SequenceEncoder: [*DROPOUT, *ATTENTION],
    models.TextEncoder: [*DROPOUT, *ATTENTION],
    models.TextClassifier: [*DROPOUT, *ATTENTION],
    models.PretrainedEncoder: [*DROPOUT, *ATTENTION, "states"],
    models.PretrainedClassifier: [*DROPOUT, *ATTENTION],
    models.Tagger: [*DROPOUT, *ATTENTION],
    models.PairClassifier: DROPOUT,
    models.DocumentEncoder: DROPOUT,
    models.DocumentClassifier: DROPOUT,
    models.DocumentRegressor: DROPOUT,
    models.NewsRecommender: DROPOUT,
    models.LanguageModel: ["caches", "cross_key_values", "cross_lengths", *DROPOUT, "weights"],
    models.Translator: [*DROPOUT, "weights"],
}


@pytest.mark.parametrize("module", KEYWORDS, ids=lambda module: module.__name__)
def test_signature_lists_the_keyword_arguments(module):
    parameters = inspect.signature(module.__call__).parameters.values()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == KEYWORDS[module]
    assert not [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
