"""How models are trained: configuration, state, step, loop, checkpoints, and runs on disk."""

from distattn_jax.train.checkpoint import Checkpoints
from distattn_jax.train.config import (
    Config,
    DataConfig,
    GuidingConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    OutputConfig,
)
from distattn_jax.train.guides import GUIDES
from distattn_jax.train.loop import Terminated, Trainer
from distattn_jax.train.losses import WeightedLoss, compose, cross_entropy, weighted_sum
from distattn_jax.train.record import NonFiniteError
from distattn_jax.train.run import Loaded, RunError, load, load_config, open_run
from distattn_jax.train.state import TrainState
from distattn_jax.train.task import Task
from distattn_jax.train.tasks import prepare, task_of

__all__ = [
    "GUIDES",
    "Checkpoints",
    "Config",
    "DataConfig",
    "GuidingConfig",
    "Loaded",
    "MeshConfig",
    "ModelConfig",
    "NonFiniteError",
    "OptimizerConfig",
    "OutputConfig",
    "RunError",
    "Task",
    "Terminated",
    "TrainState",
    "Trainer",
    "WeightedLoss",
    "compose",
    "cross_entropy",
    "load",
    "load_config",
    "open_run",
    "prepare",
    "task_of",
    "weighted_sum",
]
