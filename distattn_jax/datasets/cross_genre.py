"""Claims of the news, each to be found the paper that supports it (Zuo et al. 2020)."""

import abc
import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder, load_split
from distattn_jax.data.rows import DataError, find_file, read_rows
from distattn_jax.data.sampling import draw_disjoint
from distattn_jax.data.table import Ragged
from distattn_jax.datasets.bm25 import Bm25

SPLITS = ("train", "validation", "test")
CANDIDATES = {"train": 5, "validation": 30, "test": 30}
HARD = 29  # so many of the nearest wrong papers may be a candidate of train


class Claim(NamedTuple):
    """A claim, the numbers of the papers that support it, and of others that may."""

    text: str
    right: tuple[int, ...]
    doubtful: tuple[int, ...] = ()


class CandidatePairs(NamedTuple):
    """Every candidate of every claim in turn.

    Attributes:
      claims, papers: its claim and its paper.
      relevant: 1 where the paper is right, 0 elsewhere.
      bm25: how near it is to the claim, among the papers that may be candidates.
    """

    claims: list[str]
    papers: list[str]
    relevant: Ragged
    bm25: Ragged


class ClaimBuilder(TextBuilder):
    """Claims with candidates: papers that are right, and others that are lexically near (BM25).

    - `papers`: row i is the text of paper number i.
    - `train`: an example for every right paper of a claim: this one, and four drawn from the 29
      nearest that are not right.
    - `validation` and `test`: an example for every claim: its right papers, and the nearest others,
      30 in all. There are fewer where there are no more papers.

    The candidates of an example are in a drawn order. All draws are by a seed.
    """

    VERSION = tfds.core.Version("1.1.0")  # 1.1: bm25 of every candidate, all else as before

    @abc.abstractmethod
    def read(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        """The papers, and by split the claims and the papers that may be their candidates.

        Among these are all that are right.
        """

    def features(self) -> dict[str, Any]:
        numbers = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding="bytes")
        texts = {name: tfds.features.Text() for name in ("paper", "claim")}
        scores = tfds.features.Tensor(shape=(None,), dtype=np.float32, encoding="bytes")
        return {**texts, "candidates": numbers, "relevant": numbers, "bm25": scores}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        papers, claims, pools = self.read()
        near: dict[tuple[int, ...], Bm25] = {}
        splits: dict[str, Iterable[Example]] = {"papers": [_example(paper=text) for text in papers]}
        for split in SPLITS:
            pool = tuple(pools[split])
            if pool not in near:
                near[pool] = Bm25([papers[i] for i in pool])
            splits[split] = self._examples(split, claims[split], pool, near[pool])
        return splits

    def _examples(
        self, split: str, claims: list[Claim], pool: tuple[int, ...], near: Bm25
    ) -> Iterator[Example]:
        drawn = random.Random(f"{self.name} {split}")
        place = {paper: i for i, paper in enumerate(pool)}
        for claim in claims:
            no_others = {place[i] for i in claim.right + claim.doubtful if i in place}
            scores = near.scores(claim.text)
            others = [pool[i] for i in near.nearest(claim.text, HARD, without=no_others)]
            of_each = [(i,) for i in claim.right] if split == "train" else [claim.right]
            for right in of_each:
                count = min(max(CANDIDATES[split] - len(right), 0), len(others))
                wrong = drawn.sample(others, count) if split == "train" else others[:count]
                candidates = [*right, *wrong]
                drawn.shuffle(candidates)
                yield _example(
                    claim=claim.text,
                    candidates=np.asarray(candidates, np.int32),
                    relevant=np.asarray([i in right for i in candidates], np.int32),
                    bm25=np.asarray([scores[place[i]] for i in candidates], np.float32),
                )


class CrossGenre(ClaimBuilder):
    """Cross-genre-IR: three files, each .jsonl, .csv or .tsv, plain or .gz, with these columns.

    - `claims`: id, claim, and split (train, validation or test), which may be missing.
    - `papers`: id, title, abstract. The text of a paper is both, joined by a space.
    - `pairs`: claim, paper: the ids of a claim and of a paper that supports it.

    The files as published are laid out otherwise; they hold the same. Without splits, a tenth of
    the claims is drawn for validation and two tenths for test, those on one paper together. A claim
    without a paper is left out. Candidates of every split come from all papers.
    """

    def find_files(self) -> dict[str, Path]:
        return {stem: find_file(self.manual_dir, stem) for stem in ("claims", "papers", "pairs")}

    def read(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        papers = self._papers()
        numbers = {name: i for i, name in enumerate(papers)}
        texts, named = self._claims()
        right: dict[str, list[int]] = {name: [] for name in texts}
        path = self.raw_files["pairs"]
        for line, row in read_rows(path, columns=("claim", "paper")):
            for column, known in (("claim", right), ("paper", numbers)):
                if row[column] not in known:
                    raise DataError(
                        f"{path}:{line}: {column} must be an id of "
                        f"{self.raw_files[column + 's'].name}; got {row[column]!r}."
                    )
            right[row["claim"]].append(numbers[row["paper"]])
        claims: list[Claim] = []
        splits: list[str | None] = []
        for name, text in texts.items():
            if right[name]:
                claims.append(Claim(text, tuple(dict.fromkeys(right[name]))))
                splits.append(named[name])
            else:
                self.leave_out("claims without a paper")
        if None in splits:
            splits = [*draw_splits(_together([claim.right for claim in claims]), seed=self.name)]
        by_split = {
            split: [claim for claim, own in zip(claims, splits, strict=True) if own == split]
            for split in SPLITS
        }
        return list(papers.values()), by_split, dict.fromkeys(SPLITS, range(len(papers)))

    def _papers(self) -> dict[str, str]:
        """The text of every paper, by its id."""
        path, papers = self.raw_files["papers"], dict[str, str]()
        for line, row in read_rows(path, columns=("id", "title", "abstract")):
            text = f"{row['title'].strip()} {row['abstract'].strip()}".strip()
            if not text:
                raise DataError(f"{path}:{line}: title and abstract are both empty.")
            _add(papers, row["id"], text, f"{path}:{line}")
        return papers

    def _claims(self) -> tuple[dict[str, str], dict[str, str | None]]:
        """The text of every claim, and its split, by its id."""
        path, texts, splits = self.raw_files["claims"], dict[str, str](), dict[str, str | None]()
        for line, row in read_rows(path):
            missing = [column for column in ("id", "claim") if not row.get(column, "").strip()]
            if missing:
                raise DataError(f"{path}:{line}: must have a value of {missing[0]!r}; got none.")
            split = row.get("split")
            if split is not None and split not in SPLITS:
                raise DataError(f"{path}:{line}: split must be one of {SPLITS}; got {split!r}.")
            if splits and (split is None) != (None in splits.values()):
                raise DataError(f"{path}:{line}: all claims must have a split, or none.")
            _add(texts, row["id"], row["claim"].strip(), f"{path}:{line}")
            splits[row["id"]] = split
        return texts, splits


def load_candidates(builder: ClaimBuilder, split: str) -> CandidatePairs:
    """The candidates of every claim of a split, ready to be encoded as pairs."""
    papers = [row["paper"] for row in load_split(builder, "papers")]
    rows = load_split(builder, split)
    counts = [len(row["candidates"]) for row in rows]
    offsets = np.cumsum([0, *counts], dtype=np.int64)
    return CandidatePairs(
        [row["claim"] for row, count in zip(rows, counts, strict=True) for _ in range(count)],
        [papers[i] for i in _joined(rows, "candidates")],
        Ragged(_joined(rows, "relevant"), offsets),
        Ragged(_joined(rows, "bm25"), offsets),
    )


def draw_splits(keys: Sequence[Hashable], *, seed: str) -> list[str]:
    """A split for every row, the same for rows of the same key: 7, 1 and 2 tenths of the keys."""
    distinct = list(dict.fromkeys(keys))
    sizes = [round(len(distinct) * tenths / 10) for tenths in (1, 2)]
    validation, test = draw_disjoint(len(distinct), sizes, seed=seed)
    place = {key: i for i, key in enumerate(distinct)}
    return [
        "validation" if place[key] in validation else "test" if place[key] in test else "train"
        for key in keys
    ]


def _together(papers: Sequence[Sequence[int]]) -> list[int]:
    """A number for every claim, the same for claims that have papers in common, by whatever way."""
    of_paper: dict[int, int] = {}
    for own in papers:
        joined = {of_paper[paper] for paper in own if paper in of_paper}
        number = min((*joined, *own))
        of_paper |= dict.fromkeys(own, number)
        for paper, other in of_paper.items():
            if other in joined:
                of_paper[paper] = number
    return [of_paper[own[0]] for own in papers]


def _example(**values: Any) -> Example:
    """An example of a split: of the features, only these mean something there."""
    none = np.zeros(0, np.int32)
    scores = np.zeros(0, np.float32)
    nothing = {"paper": "", "claim": "", "candidates": none, "relevant": none, "bm25": scores}
    return {**nothing, **values}


def _joined(rows: Sequence[Example], name: str) -> np.ndarray:
    """The numbers of all examples, end to end."""
    return np.concatenate([_example()[name], *(row[name] for row in rows)])


def _add(texts: dict[str, str], name: str, text: str, at: str) -> None:
    if name in texts:
        raise DataError(f"{at}: the id {name!r} comes twice.")
    texts[name] = text
