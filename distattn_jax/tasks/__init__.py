"""Tasks: models, losses, metrics and data preparation, and loading of trained models.

The file of a task contains its config, its loss and metrics, and the preparation of its data.
"""

from distattn_jax.tasks.claim_ranking import ClaimRanking, ClaimRankingConfig, ClaimRankingData
from distattn_jax.tasks.configs import GuidingConfig, ModelConfig, PretrainedModelConfig
from distattn_jax.tasks.documents import (
    DocumentClassification,
    DocumentClassificationConfig,
    DocumentData,
    DocumentRegression,
    DocumentRegressionConfig,
)
from distattn_jax.tasks.far_attention import FarAttention, measure_far_attention
from distattn_jax.tasks.guides import GUIDES, Guide, GuideOptions
from distattn_jax.tasks.inspection import (
    DistanceProfile,
    RelationTable,
    SentenceAttention,
    TrainedModels,
    distance_parameters,
    distance_profile,
    layer_variants,
    load_models,
    relation_tables,
    sentence_attention,
    variant_parameters,
)
from distattn_jax.tasks.language_modeling import (
    LanguageModelConfig,
    LanguageModeling,
    LanguageModelingConfig,
    LanguageModelingData,
)
from distattn_jax.tasks.load import TRAINED, LoadedModel, load, load_config
from distattn_jax.tasks.news_recommendation import (
    NewsRecommendation,
    NewsRecommendationConfig,
    NewsRecommendationData,
)
from distattn_jax.tasks.preparation import PreparedData
from distattn_jax.tasks.pretrained_classification import (
    PretrainedClassification,
    PretrainedClassificationConfig,
    PretrainedClassificationData,
)
from distattn_jax.tasks.pruning import (
    PruningResult,
    measure_pruning,
    prune_heads,
    received_concentration,
)
from distattn_jax.tasks.registry import (
    TASKS,
    make_task,
    make_trainer,
    open_task_run,
    prepare,
    read_split,
)
from distattn_jax.tasks.save import save
from distattn_jax.tasks.tagging import Tagging, TaggingConfig, TaggingData, TaggingModelConfig
from distattn_jax.tasks.text_attention import PartAttention, attend_to_texts, attend_with_encoder
from distattn_jax.tasks.text_classification import (
    PairClassification,
    PairClassificationConfig,
    PairClassificationData,
    TextClassification,
    TextClassificationConfig,
    TextClassificationData,
)
from distattn_jax.tasks.text_lengths import LengthResult, measure_perplexity
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.tasks.translation import (
    Translation,
    TranslationConfig,
    TranslationData,
    TranslationModelConfig,
)

__all__ = [
    "GUIDES",
    "TASKS",
    "TRAINED",
    "ClaimRanking",
    "ClaimRankingConfig",
    "ClaimRankingData",
    "DistanceProfile",
    "DocumentClassification",
    "DocumentClassificationConfig",
    "DocumentData",
    "DocumentRegression",
    "DocumentRegressionConfig",
    "FarAttention",
    "Guide",
    "GuideOptions",
    "GuidingConfig",
    "LanguageModelConfig",
    "LanguageModeling",
    "LanguageModelingConfig",
    "LanguageModelingData",
    "LengthResult",
    "LoadedModel",
    "ModelConfig",
    "NewsRecommendation",
    "NewsRecommendationConfig",
    "NewsRecommendationData",
    "PairClassification",
    "PairClassificationConfig",
    "PairClassificationData",
    "PartAttention",
    "PreparedData",
    "PretrainedClassification",
    "PretrainedClassificationConfig",
    "PretrainedClassificationData",
    "PretrainedModelConfig",
    "PruningResult",
    "RelationTable",
    "SentenceAttention",
    "Tagging",
    "TaggingConfig",
    "TaggingData",
    "TaggingModelConfig",
    "TextClassification",
    "TextClassificationConfig",
    "TextClassificationData",
    "TextTask",
    "TrainedModels",
    "Translation",
    "TranslationConfig",
    "TranslationData",
    "TranslationModelConfig",
    "attend_to_texts",
    "attend_with_encoder",
    "distance_parameters",
    "distance_profile",
    "layer_variants",
    "load",
    "load_config",
    "load_models",
    "make_task",
    "make_trainer",
    "measure_far_attention",
    "measure_perplexity",
    "measure_pruning",
    "open_task_run",
    "prepare",
    "prune_heads",
    "read_split",
    "received_concentration",
    "relation_tables",
    "save",
    "sentence_attention",
    "variant_parameters",
]
