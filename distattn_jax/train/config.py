"""Options of the training loop. Every task extends `Config` with options of its own.

A recipe is an instance of a task's config. Every field can be set on the command line by its dotted
name, such as `--optimizer.learning-rate`. Fields declared with `grid=True` accept several values.
One model is trained for each combination of these values and each seed. All models of a run are
trained side by side in one program.
"""

import dataclasses
import functools
from typing import ClassVar, TypeVar

from distattn_jax.train.options import Options, is_read_by, iterate_options, option, replace_options

ConfigType = TypeVar("ConfigType", bound="Config")
SEED_LIMIT = 2**32  # JAX makes keys from 32-bit seeds.
MAX_STEPS = 2**31 - 1  # Steps are 32-bit integers on the device.
MAX_BATCH, MAX_BUCKETS = 2**16, 64  # Larger numbers are typing errors.
# Larger numbers are mistakes that would exhaust the memory, or never end.
MAX_SEEDS, MAX_EPOCHS = 100_000, 1_000_000
SHORT_RUN = 200  # A model that was trained for fewer steps has hardly learned anything.


@dataclasses.dataclass(frozen=True)
class DataConfig(Options):
    """Options that select a data set and define how its examples are divided into batches."""

    batch_size: int = option(
        64, "number of examples in a batch, over all devices", minimum=1, maximum=MAX_BATCH
    )
    buckets: int = option(
        4, "number of different lengths that batches are padded to", minimum=1, maximum=MAX_BUCKETS
    )
    seed: int = option(
        0,
        "seed of the order of examples; all methods and all model seeds use the same order",
        minimum=0,
        maximum=SEED_LIMIT - 1,
    )
    dataset: str = option("", "name of the data set")
    directory: str = option("data", "folder of prepared data sets", changes_result=False)
    manual_dir: str = option(
        "", "folder with the raw files; empty downloads them if possible", changes_result=False
    )

    @property
    def batch_tokens(self) -> int:
        """Largest number of tokens in a batch; 0 if every batch has `batch_size` examples.

        A task that sets the size of a batch in tokens overrides this property by an option.
        """
        return 0

    def count_rows(self, length: int) -> int:
        """Return the number of examples in a batch that is padded to `length` tokens."""
        return max(self.batch_tokens // length, 1) if self.batch_tokens else self.batch_size


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Options):
    """Options of Adam, its learning rate and its weight decay."""

    learning_rate: tuple[float, ...] = option((1e-3,), "peak learning rate", grid=True, minimum=0)
    schedule: str = option(
        "constant",
        "learning-rate schedule after warm-up",
        choices=("constant", "linear", "cosine", "inverse_square_root"),
    )
    warmup_steps: int = option(
        0, "steps in which the learning rate rises to its peak", minimum=0, maximum=MAX_STEPS
    )
    warmup_share: float = option(
        0.0, "largest share of the steps that are warm-up; 0 for no limit", minimum=0, maximum=1
    )
    weight_decay: float = option(
        0.0,
        "decoupled weight decay (AdamW) of matrices; biases and norms are not decayed",
        minimum=0,
    )
    b1: float = option(0.9, "decay of the first moment")
    b2: float = option(0.999, "decay of the second moment")
    epsilon: float = option(1e-8, "number added to the root of the second moment")
    clip_norm: float = option(0.0, "largest global gradient norm; 0 disables clipping", minimum=0)
    accumulate: int = option(
        1, "number of parts of a batch, computed one after another to save memory", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("b1", "b2"):
            self.require(0 <= getattr(self, name) < 1, name, "in [0, 1)")
        self.require(self.epsilon > 0, "epsilon", "above 0")


# Declares an option that cannot change results, such as the place where a run is stored.
_placement = functools.partial(option, changes_result=False)


@dataclasses.dataclass(frozen=True)
class MeshConfig(Options):
    """Numbers of devices and processes.

    Batches are sharded over `data`, the tokens of texts over `sequence`, and heads over `model`.
    """

    data: int = _placement(
        0,
        "devices that share a batch; 0 means all devices divided by `sequence` and `model`",
        minimum=0,
    )
    sequence: int = _placement(1, "devices that share the tokens of each text", minimum=1)
    model: int = _placement(1, "devices that share the heads", minimum=1)
    coordinator: str = _placement("", "host:port of process 0, for runs of several processes")
    processes: int = _placement(
        0, "number of processes; 0 for a single process or automatic detection", minimum=0
    )
    process: int = _placement(-1, "index of this process; -1 for automatic detection")
    cluster: bool = _placement(False, "detect all hosts automatically, as on a Cloud TPU slice")


@dataclasses.dataclass(frozen=True)
class OutputConfig(Options):
    """Options of the files that a run writes."""

    directory: str = _placement("runs", "folder of all runs (a local folder or a bucket)")
    log_every: int = _placement(
        50, "steps between two lines of metrics; a short run has at least five lines", minimum=1
    )
    # A validation may find better parameters, so this option can change results.
    evaluate_every: int = option(
        0,
        "steps between two validations; 0 for once an epoch, but at most 50 times, and at least 4 "
        f"times in a run of less than {SHORT_RUN} steps",
        minimum=0,
    )
    checkpoint_every: int = _placement(
        0, "steps between two checkpoints; 0 for every validation", minimum=0
    )
    keep: int = _placement(
        2, "number of checkpoints kept; each contains the best parameters so far", minimum=1
    )
    test: bool = _placement(True, "evaluate on the test set at the end; a search does not")
    tensorboard: bool = _placement(True, "write TensorBoard events")
    profile: bool = _placement(False, "write a profile of five steps")
    compiled: str = _placement(
        "",
        "folder of compiled programs; empty for the cache folder of the user, none to compile at "
        "every start",
    )


@dataclasses.dataclass(frozen=True)
class Config(Options):
    """Options of an experiment.

    An experiment has one run for each method, i.e. for each attention variant or guide.
    """

    task: ClassVar[str]  # the name of the task in `distattn_jax.tasks.TASKS`
    # Options that --help shows first. A task that lacks an option leaves it out.
    common_options: ClassVar[tuple[str, ...]] = (
        *("methods", "name", "seeds", "epochs", "steps"),
        *("data.manual_dir", "data.batch_size", "data.batch_tokens", "model.pretrained"),
        *("optimizer.learning_rate", "model.layers", "model.heads", "model.dropout_rate"),
    )

    name: str = option("unnamed", "name of the experiment, and of the folder of its runs")
    methods: tuple[str, ...] = option(
        (), "attention variants or guides to compare, one run each", changes_result=False
    )
    seeds: int = option(
        1,
        "number of seeds, trained side by side for each setting of the grid",
        minimum=1,
        maximum=MAX_SEEDS,
    )
    seed: int = option(0, "first of the consecutive seeds", minimum=0)
    epochs: float = option(1.0, "number of passes over the training set", maximum=MAX_EPOCHS)
    steps: int = option(
        0, "number of training steps; 0 computes it from the epochs", minimum=0, maximum=MAX_STEPS
    )
    min_steps: int = option(
        0,
        "smallest number of steps, if neither --steps nor --epochs is given",
        minimum=0,
        maximum=MAX_STEPS,
    )
    search: str = option(
        "", "folder of a finished search; each method uses its best setting found there"
    )
    models_at_once: int = option(
        0,
        "largest number of models computed at a time, in equal groups, to save memory; 0 for all",
        changes_result=False,
        minimum=0,
    )
    steps_at_once: int = option(
        0,
        "largest number of steps in one call of the compiled program; 0 for about 0.25 s of steps",
        changes_result=False,
        minimum=0,
    )
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    output: OutputConfig = OutputConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        is_folder_name = self.name not in ("", ".", "..") and not set("/\\") & set(self.name)
        is_folder_name &= self.name.isprintable()
        self.require(
            is_folder_name, "name", "a folder name of printable characters, without / or \\"
        )
        last_seed = SEED_LIMIT - self.seeds
        self.require(self.seed <= last_seed, "seed", f"at most {last_seed}")
        self.require(self.epochs > 0, "epochs", "above 0")
        self.require(len(self.methods) > 0, "methods", "at least one name")
        if not self.data.batch_tokens and self.data.batch_size % self.optimizer.accumulate:
            raise ValueError(
                f"data.batch_size ({self.data.batch_size}) must be a multiple of "
                f"optimizer.accumulate ({self.optimizer.accumulate})."
            )
        mesh = self.mesh
        if not bool(mesh.coordinator) == (mesh.processes > 0) == (mesh.process >= 0):
            raise ValueError(
                "mesh.coordinator, mesh.processes and mesh.process must be given together; got "
                f"{mesh.coordinator!r}, {mesh.processes} and {mesh.process}."
            )

    @property
    def method(self) -> str:
        """The only entry of `methods`: the name of the attention variant or guide of this run.

        Raises:
          ValueError: `methods` has several entries.
        """
        (method,) = self.methods
        return method

    def count_steps(self, per_epoch: int) -> int:
        """Return the number of training steps, for an epoch of `per_epoch` batches."""
        return self.steps or max(round(self.epochs * per_epoch), self.min_steps, 1)

    def for_method(self: ConfigType, method: str) -> ConfigType:
        """Return the config of the run that trains one method (attention variant or guide).

        Options that the method does not use are reset to their default values. The hyperparameter
        grid therefore contains one value for each of these options.
        """
        unread = {
            name: field.default
            for name, field, _ in iterate_options(self)
            if not is_read_by(field, method)
        }
        return replace_options(self, {**unread, "methods": (method,)})
