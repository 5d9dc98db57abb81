"""Text encoders with any attention variant, and models for tasks: classifier, translator, ..."""

from distattn_jax.models.beam_search import Hypotheses, beam_search
from distattn_jax.models.document import (
    DocumentClassifier,
    DocumentEncoder,
    DocumentRegressor,
    RegressionOutput,
)
from distattn_jax.models.language_model import LanguageModel, LanguageModelOutput
from distattn_jax.models.methods import METHODS, Method, Sizes
from distattn_jax.models.news_recommender import NewsRecommender, RankingOutput
from distattn_jax.models.pretrained import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained_classifier import PretrainedClassifier
from distattn_jax.models.sampling import Samples, sample
from distattn_jax.models.tagger import Tagger, TaggerOutput
from distattn_jax.models.text_classifier import ClassifierOutput, PairClassifier, TextClassifier
from distattn_jax.models.text_encoder import PooledOutput, SequenceEncoder, TextEncoder
from distattn_jax.models.translator import Translator, TranslatorOutput, shift_right

__all__ = [
    "METHODS",
    "ClassifierOutput",
    "DocumentClassifier",
    "DocumentEncoder",
    "DocumentRegressor",
    "Hypotheses",
    "LanguageModel",
    "LanguageModelOutput",
    "Method",
    "NewsRecommender",
    "PairClassifier",
    "PooledOutput",
    "PretrainedClassifier",
    "PretrainedConfig",
    "PretrainedEncoder",
    "RankingOutput",
    "RegressionOutput",
    "Samples",
    "SequenceEncoder",
    "Sizes",
    "Tagger",
    "TaggerOutput",
    "TextClassifier",
    "TextEncoder",
    "Translator",
    "TranslatorOutput",
    "beam_search",
    "sample",
    "shift_right",
]
