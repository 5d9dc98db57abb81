"""The configuration of a run: frozen dataclasses that check themselves.

A recipe is a `Config`; every field can be set from the command line by its dotted name. Fields that
hold several values (`optimizer.learning_rate`, `model.dropout_rate`, ...) make a grid: all of its
settings, each with all seeds, are trained side by side in one program.
"""

import dataclasses
import math

from distattn_jax.data import TOKENIZERS
from distattn_jax.models import METHODS
from distattn_jax.train.flags import Checked, leaves, option, replace
from distattn_jax.train.guides import GUIDES

WEIGHTS = ("alpha", "beta", "gamma")  # of guides
ANY_LAYER = -1
LAYER = "guiding.layer"


@dataclasses.dataclass(frozen=True)
class DataConfig(Checked):
    """What is learned from."""

    directory: str = option("data", "where prepared data sets are kept")
    manual_dir: str = option("", "folder with the raw files, for a task that needs some")
    batch_size: int = option(64, "examples in a batch, over all devices")
    longest: int = option(512, "tokens beyond this many are cut off (the run says how many texts)")
    sentences: int = option(32, "documents: sentences beyond this many are cut off")
    buckets: int = option(4, "number of lengths that batches are padded to")
    tokenizer: str = option("word_level", "how texts become tokens", choices=tuple(TOKENIZERS))
    vocabulary: int = option(50_000, "most entries of the vocabulary, built on the training set")
    min_count: int = option(1, "word_level: rarer words become unknown")
    vectors: str = option(
        "", "GloVe file (text, .gz or .zip): the initial embeddings, or what word_similarity is by"
    )
    parses: str = option("", "folder with the training set parsed (CoNLL-U), for dependency")
    share: float = option(1.0, "pre-trained models: the part of the training set learned from")
    seed: int = option(0, "of the order of the examples, the same for all methods and seeds")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "batch_size", "longest", "sentences", "buckets", "min_count")
        self.at_least(3, "vocabulary")
        self.require(0 < self.share <= 1, "share", "above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Checked):
    """How large the model is."""

    pretrained: str = option(
        "", "folder or hub name of a pre-trained model, whose sizes then count"
    )
    layers: int = option(1, "encoder layers")
    heads: int = option(16, "attention heads")
    head_features: int = option(16, "width of a head")
    features: int = option(256, "width of the model")
    hidden_features: int = option(256, "width inside the feed-forward networks")
    embedding_features: int = option(300, "width of the embeddings; with vectors, theirs")
    pooling_features: int = option(200, "width of the pooling's hidden layer")
    max_distance: int = option(16, "relative_position: relations beyond this distance are one")
    dropout_rate: tuple[float, ...] = option(
        (0.2,), "share dropped, whatever a pre-trained model's config.json says; several: a grid"
    )
    initial_weight: tuple[float, ...] = option(
        (0.1,), "distance_aware: mean |w| at first, half of the heads negative; several: a grid"
    )
    initial_shape: tuple[float, ...] = option((0.0,), "distance_aware: v at first; several: a grid")
    dtype: str = option(
        "float32", "of the computation; parameters are float32", choices=("float32", "bfloat16")
    )
    implementation: str = option("", "of the attention; empty: the first that can serve")
    remat: bool = option(False, "pre-trained models: compute layers twice, to save memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "layers", "heads", "head_features", "features", "hidden_features")
        self.at_least(1, "embedding_features", "pooling_features")
        self.at_least(0, "max_distance", "dropout_rate")
        self.require(self.features % 2 == 0, "features", "even (sines and cosines)")
        self.require(all(rate < 1 for rate in self.dropout_rate), "dropout_rate", "below 1")
        for name in ("dropout_rate", "initial_weight", "initial_shape"):
            self.require(len(getattr(self, name)) > 0, name, "at least one value")


@dataclasses.dataclass(frozen=True)
class GuidingConfig(Checked):
    """What is asked of the attention of a pre-trained model, where the method is a guide."""

    alpha: tuple[float, ...] = option((0.01,), "weight of MDG; several: a grid")
    beta: tuple[float, ...] = option((0.01,), "weight of PDG; several: a grid")
    gamma: tuple[float, ...] = option((1.0,), "weight of any other guide; several: a grid")
    layers: tuple[int, ...] = option((), "those that are guided, the first is 0; none: all")
    layer: tuple[int, ...] = option(
        (ANY_LAYER,), "the one layer that is guided; -1: those of layers; several: a grid"
    )
    scaling: str = option(
        "mean", "MDG and PDG: means, or sums as they are printed", choices=("mean", "sum")
    )
    temperature: float = option(1.0, "of MDG")
    pmi_tokens: int = option(4096, "pmi: most frequent tokens whose company is counted")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(0, *WEIGHTS, "layers")
        self.at_least(1, "pmi_tokens")
        self.require(self.temperature > 0, "temperature", "above 0")
        for name in WEIGHTS:
            self.require(len(getattr(self, name)) > 0, name, "at least one value")
        self.require(len(set(self.layers)) == len(self.layers), "layers", "different ones")
        unset = self.layer == (ANY_LAYER,)
        some = (
            len(self.layer) > 0 and min(self.layer) >= 0 and len(set(self.layer)) == len(self.layer)
        )
        self.require(unset or some, "layer", "-1 alone, or different layers from 0 on")
        self.require(unset or not self.layers, "layer", "-1 where layers are given")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Checked):
    """How it learns."""

    name: str = option("adam", "the optimiser", choices=("adam", "adamw"))
    learning_rate: tuple[float, ...] = option((1e-3,), "at its peak; several: a grid")
    distance_rate: tuple[float, ...] = option(
        (1.0,), "learning rate of w and v, as a multiple of the others'; several: a grid"
    )
    schedule: str = option(
        "constant",
        "of the learning rate after warm-up",
        choices=("constant", "linear", "cosine", "inverse_square_root"),
    )
    warmup_steps: int = option(0, "steps in which the learning rate rises to its peak")
    weight_decay: float = option(0.0, "adamw: of matrices, not of biases and norms")
    b1: float = option(0.9, "decay of the mean of the gradients")
    b2: float = option(0.999, "decay of the mean of their squares")
    epsilon: float = option(1e-8, "added to the root of that mean")
    clip_norm: float = option(0.0, "gradients longer than this are shortened to it; 0: never")
    accumulate: int = option(1, "parts of a batch computed one after another, to save memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(0, "learning_rate", "distance_rate", "warmup_steps", "weight_decay")
        self.at_least(0, "clip_norm")
        self.at_least(1, "accumulate")
        for name in ("learning_rate", "distance_rate"):
            self.require(len(getattr(self, name)) > 0, name, "at least one value")
        for name in ("b1", "b2"):
            self.require(0 <= getattr(self, name) < 1, name, "in [0, 1)")
        self.require(self.epsilon > 0, "epsilon", "above 0")
        self.require(
            self.weight_decay == 0 or self.name == "adamw", "weight_decay", "0 unless name is adamw"
        )


@dataclasses.dataclass(frozen=True)
class MeshConfig(Checked):
    """The devices: batches are spread over `data`, heads over `model`."""

    data: int = option(0, "devices that share a batch; 0: all that are left by `model`")
    model: int = option(1, "devices that share the heads")
    at_once: int = option(
        0, "most models computed at a time, in equal groups, to save memory; 0: all"
    )
    coordinator: str = option("", "host:port of process 0, when there are several processes")
    processes: int = option(0, "how many processes; 0: one, or what the cluster says")
    process: int = option(-1, "which of them this is; -1: what the cluster says")
    cluster: bool = option(False, "several hosts that find each other, as on a Cloud TPU slice")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(0, "data", "at_once", "processes")
        self.at_least(1, "model")
        together = bool(self.coordinator) == (self.processes > 0) == (self.process >= 0)
        if not together:
            raise ValueError(
                "coordinator, processes and process must be given together; got "
                f"{self.coordinator!r}, {self.processes} and {self.process}."
            )


@dataclasses.dataclass(frozen=True)
class OutputConfig(Checked):
    """What is written, and when."""

    directory: str = option("runs", "where runs are kept (a local folder or a bucket)")
    log_every: int = option(50, "steps between two lines of metrics")
    evaluate_every: int = option(0, "steps between two validations; 0: once an epoch")
    checkpoint_every: int = option(0, "steps between two checkpoints; 0: at every validation")
    keep: int = option(2, "checkpoints kept; the best parameters are in each")
    test: bool = option(True, "whether to measure the test set at the end; a search does not")
    tensorboard: bool = option(True, "whether to write TensorBoard events")
    profile: bool = option(False, "whether to write a trace of five steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "log_every", "keep")
        self.at_least(0, "evaluate_every", "checkpoint_every")


@dataclasses.dataclass(frozen=True)
class Config(Checked):
    """All of it."""

    name: str = option("unnamed", "of the experiment: its runs are kept under it")
    task: str = option("nearest", "what is learned")
    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "what is compared: attentions, or guides of a pre-trained model",
        choices=(*METHODS, *GUIDES),
    )
    seeds: int = option(1, "models of each setting, trained side by side")
    seed: int = option(0, "the first of the seeds")
    epochs: float = option(1.0, "times the training set is gone through")
    search: str = option(
        "", "folder of a finished search: each method takes its best setting, but for what is given"
    )
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    guiding: GuidingConfig = GuidingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    output: OutputConfig = OutputConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "seeds")
        self.at_least(0, "seed")
        self.require(self.epochs > 0, "epochs", "above 0")
        self.require(math.isfinite(self.epochs), "epochs", "finite")
        self.require(len(self.methods) > 0, "methods", "at least one name")
        if self.data.batch_size % self.optimizer.accumulate:
            raise ValueError(
                f"data.batch_size ({self.data.batch_size}) must be a multiple of "
                f"optimizer.accumulate ({self.optimizer.accumulate})."
            )
        if not self.model.pretrained and self.model.heads % self.mesh.model:
            raise ValueError(
                f"model.heads ({self.model.heads}) must be a multiple of "
                f"mesh.model ({self.mesh.model})."
            )

    def of(self, method: str) -> "Config":
        """The configuration of one run: of one method.

        Settings that differ only in what the method does not have are one setting.
        """
        one = dataclasses.replace(self, methods=(method,))
        values = {name: value for name, _, value in leaves(one)}
        first = {name: values[name][:1] for name in lacking(method)}
        if LAYER in first:
            first[LAYER] = (ANY_LAYER,)
        return replace(one, first)


def lacking(method: str) -> tuple[str, ...]:
    """The fields of a configuration that mean nothing to a method, by their dotted names."""
    weights = GUIDES[method].weights if method in GUIDES else ()
    names = [f"guiding.{name}" for name in WEIGHTS if name not in weights]
    names += [] if weights else [LAYER]
    if method in GUIDES or not METHODS[method].has_distance_weights:
        names += ["model.initial_weight", "model.initial_shape", "optimizer.distance_rate"]
    return tuple(names)


def unread(method: str) -> tuple[str, ...]:
    """The same, with the fields that make no grid."""
    if method not in GUIDES:
        return lacking(method)
    guide = GUIDES[method]
    read = {
        "data.parses": "heads" in guide.columns,
        "data.vectors": "vectors" in guide.columns,
        "guiding.pmi_tokens": "pmi_values" in guide.constants,
        "guiding.scaling": guide.received,
        "guiding.temperature": "alpha" in guide.weights,
    }
    return (*lacking(method), *(name for name, is_read in read.items() if not is_read))
