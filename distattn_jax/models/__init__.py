"""Models: encoders of any attention, with what their tasks put around them."""

from distattn_jax.models.document import (
    DocumentClassifier,
    DocumentEncoder,
    DocumentRegressor,
    Rated,
)
from distattn_jax.models.methods import METHODS, Method, Sizes
from distattn_jax.models.news_recommender import NewsRecommender, Scored
from distattn_jax.models.pair_classifier import PairClassifier
from distattn_jax.models.pretrained import PretrainedConfig, PretrainedEncoder, Understood
from distattn_jax.models.pretrained_classifier import PretrainedClassifier
from distattn_jax.models.text_classifier import Classified, TextClassifier
from distattn_jax.models.text_encoder import Pooled, SequenceEncoder, TextEncoder

__all__ = [
    "METHODS",
    "Classified",
    "DocumentClassifier",
    "DocumentEncoder",
    "DocumentRegressor",
    "Method",
    "NewsRecommender",
    "PairClassifier",
    "Pooled",
    "PretrainedClassifier",
    "PretrainedConfig",
    "PretrainedEncoder",
    "Rated",
    "Scored",
    "SequenceEncoder",
    "Sizes",
    "TextClassifier",
    "TextEncoder",
    "Understood",
]
