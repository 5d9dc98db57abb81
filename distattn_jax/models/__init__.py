"""Encoders with any attention variant, and task models that contain such an encoder."""

from distattn_jax.models.document import (
    DocumentClassifier,
    DocumentEncoder,
    DocumentRegressor,
    RegressionOutput,
)
from distattn_jax.models.methods import METHODS, Method, Sizes
from distattn_jax.models.news_recommender import NewsRecommender, RankingOutput
from distattn_jax.models.pair_classifier import PairClassifier
from distattn_jax.models.pretrained import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained_classifier import PretrainedClassifier
from distattn_jax.models.text_classifier import ClassifierOutput, TextClassifier
from distattn_jax.models.text_encoder import PooledOutput, SequenceEncoder, TextEncoder

__all__ = [
    "METHODS",
    "ClassifierOutput",
    "DocumentClassifier",
    "DocumentEncoder",
    "DocumentRegressor",
    "Method",
    "NewsRecommender",
    "PairClassifier",
    "PooledOutput",
    "PretrainedClassifier",
    "PretrainedConfig",
    "PretrainedEncoder",
    "RankingOutput",
    "RegressionOutput",
    "SequenceEncoder",
    "Sizes",
    "TextClassifier",
    "TextEncoder",
]
