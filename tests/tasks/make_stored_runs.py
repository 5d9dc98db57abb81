"""Make tests/tasks/stored_runs: a small finished run of every task, and its outputs for a batch.

`python -m tests.tasks.make_stored_runs` trains each run with the command of a user. The stored runs
were written by commit fb69e8f. They show that later versions read the files of earlier versions, so
write them again only if `distattn_jax.train.run.FORMAT` changes.
"""

import json
import os
import tarfile
import tempfile
from pathlib import Path

from distattn_jax.data import load_split
from distattn_jax.tasks import load
from distattn_jax.tasks.preparation import open_dataset
from distattn_jax.tasks.text_task import PredictingTask
from experiments.__main__ import main
from tests.experiments.raw_data import write_amazon, write_mind, write_snli
from tests.experiments.test_guiding_recipes import write_covid_fact, write_multinli
from tests.tasks.parallel_texts import write_pairs
from tests.tasks.test_stored_runs import ROWS, STORED, compute_outputs, make_batch
from tests.train.pretrained import write_model
from tests.train.runs import write_texts

OPTIONS = (
    *("--data.directory", "prepared", "--data.buckets", "1", "--data.batch-size", "4"),
    *("--steps", "3", "--seeds", "1", "--mesh.data", "1"),
    *("--optimizer.learning-rate", "0.1", "--optimizer.warmup-steps", "0"),
    *("--output.tensorboard", "false", "--output.keep", "1"),
)
LAYERS = (
    *("--model.layers", "1", "--model.heads", "2", "--model.head-features", "4"),
    *("--model.features", "8", "--model.hidden-features", "8", "--model.dropout-rate", "0.1"),
    *("--model.max-distance", "2"),
)
WORDS = (*LAYERS, "--model.embedding-features", "6")
TEXTS = (*WORDS, "--model.pooling-features", "4")


def write_tags(folder):
    """Write tagged sentences in columns."""
    lines = ("Anna B-PER", "saw O", "New B-LOC", "York I-LOC", "", "the O", "sea O", "", "")
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text("\n".join(lines * 4))


def write_documents(folder):
    """Write plain texts for a language model."""
    text = "one old cow\n\nthe red sea\n\none red cow\n\nthe old sea\n\n"
    for split in ("train", "validation", "test"):
        (folder / f"{split}.txt").write_text(text * 3)


# Recipe of a run, its method, the function that writes its raw files, and options of the model.
RUNS = {
    "text_classification": ("text_files", "distance_aware", write_texts, (*TEXTS, "--seeds", "2")),
    "pair_classification": ("snli", "transformer_xl", write_snli, TEXTS),
    "document_classification": ("amazon", "relative_position", write_amazon, TEXTS),
    "document_regression": ("amazon_rating", "vanilla", write_amazon, TEXTS),
    "news_recommendation": ("mind", "distance_aware_linear", write_mind, TEXTS),
    "pretrained_classification": ("multinli", "ag", write_multinli, ("--model.pretrained", "tiny")),
    "claim_ranking": ("covid_fact", "none", write_covid_fact, ("--model.pretrained", "tiny")),
    "language_modeling": ("language_model", "distance_aware", write_documents, LAYERS),
    "tagging": ("tagging", "adapted", write_tags, (*WORDS, "--model.spelling-features", "2")),
    "translation": ("parallel_text", "switched_positions", write_pairs, LAYERS),
}
DATA = {
    "pretrained_classification": ("--data.longest", "16"),
    "claim_ranking": ("--data.longest", "16"),
    "language_modeling": ("--data.vocabulary", "259", "--data.longest", "6"),
    "translation": ("--data.vocabulary", "259", "--data.batch-tokens", "128"),
}


def train_run(name):
    """Train one run in the current folder with the command `train`, and return its folder."""
    recipe, method, write, sizes = RUNS[name]
    raw = Path(f"raw_{name}")
    if write not in (write_pairs, write_texts):
        raw.mkdir()
    raw = write(raw) or raw
    options = (*OPTIONS, "--data.manual-dir", str(raw), *sizes, *DATA.get(name, ()))
    main(["train", recipe, "--methods", method, "--name", name, *options])
    return Path("runs") / name / method


def read_texts(task):
    """Return the text fields of a few test examples; None if no user can enter such texts."""
    if not isinstance(task, PredictingTask):
        return None
    rows = load_split(open_dataset(task.config.data), "test")[:ROWS]
    return [{field: row[field] for field in task.fields} for row in rows]


def store_run(name):
    """Train one run, and store its folder with the examples and their outputs as an archive."""
    folder = train_run(name)
    task, model, *_ = load(folder)
    texts = read_texts(task)
    batch = make_batch(task, texts)
    outputs, predictions = compute_outputs(task, model, batch, texts)
    expected = {
        "texts": texts,
        "batch": {name: column.tolist() for name, column in batch.items()},
        "outputs": [float(f"{number:.7g}") for number in outputs.ravel()],
        "predictions": predictions,
    }
    (folder / "expected.json").write_text(json.dumps(expected))
    STORED.mkdir(exist_ok=True)
    with tarfile.open(STORED / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "lock":
                archive.add(path, path.relative_to(folder), filter=_forget_owner)


def _forget_owner(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        write_model(Path("tiny"))
        for run in RUNS:
            store_run(run)
