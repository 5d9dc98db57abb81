"""Training system: options, state, step, loop, evaluation, checkpoints and runs on disk.

The training system works for any task: a `Task` object supplies the model, the loss and the
metrics.
"""

from distattn_jax.token_scores import TokenScores, score_tokens
from distattn_jax.train.checkpoint import CheckpointError, Checkpoints
from distattn_jax.train.config import Config, DataConfig, MeshConfig, OptimizerConfig, OutputConfig
from distattn_jax.train.evaluation import evaluate
from distattn_jax.train.loop import Terminated, Trainer
from distattn_jax.train.losses import (
    Loss,
    WeightedLoss,
    compose,
    cross_entropy,
    token_cross_entropy,
    weighted_sum,
)
from distattn_jax.train.members import Member, Setting
from distattn_jax.train.options import Options, option
from distattn_jax.train.run import Run, RunError, open_run
from distattn_jax.train.run_logger import NonFiniteError
from distattn_jax.train.state import TrainState
from distattn_jax.train.task import Batch, Task

__all__ = [
    "Batch",
    "CheckpointError",
    "Checkpoints",
    "Config",
    "DataConfig",
    "Loss",
    "Member",
    "MeshConfig",
    "NonFiniteError",
    "OptimizerConfig",
    "Options",
    "OutputConfig",
    "Run",
    "RunError",
    "Setting",
    "Task",
    "Terminated",
    "TokenScores",
    "TrainState",
    "Trainer",
    "WeightedLoss",
    "compose",
    "cross_entropy",
    "evaluate",
    "open_run",
    "option",
    "score_tokens",
    "token_cross_entropy",
    "weighted_sum",
]
