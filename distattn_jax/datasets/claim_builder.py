"""Base class of the data sets for claim ranking. Each claim has a list of candidate papers."""

import abc
import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder, draw_disjoint, load_split
from distattn_jax.data.table import Ragged
from distattn_jax.datasets.bm25 import Bm25

SPLITS = ("train", "validation", "test")
CANDIDATES = {"train": 5, "validation": 30, "test": 30}  # candidates of an example
HARD_NEGATIVES = 29  # highest-scoring wrong papers from which candidates are drawn


class Claim(NamedTuple):
    """Claim and the papers that support it.

    Attributes:
      text: Text of the claim.
      right: Indices of the papers that support the claim.
      doubtful: Indices of other papers that may support the claim. These papers are never used as
        wrong candidates of the claim.
    """

    text: str
    right: tuple[int, ...]
    doubtful: tuple[int, ...] = ()


class CandidatePairs(NamedTuple):
    """Pairs of a claim and a candidate paper, ordered by claim.

    Attributes:
      claims: Text of the claim of every pair.
      papers: Text of the paper of every pair.
      relevant: Relevance of each candidate: 1 for a correct paper, 0 for a wrong paper. The column
        has one row per claim.
      bm25: BM25 score of each candidate. The column has one row per claim.
    """

    claims: list[str]
    papers: list[str]
    relevant: Ragged
    bm25: Ragged


class ClaimBuilder(TextBuilder):
    """Builder of claims with candidate papers: correct papers, and wrong papers with similar words.

    - Split `papers`: row i is the text of paper i.
    - Split `train`: one example for each correct paper of each claim. The candidates are this paper
      and four wrong papers, drawn from the 29 wrong papers with the highest BM25 scores.
    - Splits `validation` and `test`: one example for each claim. The candidates are all correct
      papers of the claim and the wrong papers with the highest BM25 scores, 30 papers in total if
      possible.

    The candidates of an example are in random order. All random choices have a fixed seed.
    """

    UNIT = "claims"
    # 1.1.0 added the BM25 score of every candidate, 1.2.0 the claims that occur in two splits.
    VERSION = tfds.core.Version("1.2.0")
    EMPTY: ClassVar[Example] = {
        **dict.fromkeys(("paper", "claim"), ""),
        **dict.fromkeys(("candidates", "relevant"), np.zeros(0, np.int32)),
        "bm25": np.zeros(0, np.float32),
    }

    @abc.abstractmethod
    def read_claims(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        """Read papers and claims from the raw files.

        Returns:
          A tuple (texts, claims, pools). `texts` has the text of every paper. `claims` is a dict
          from each split to its claims. `pools` is a dict from each split to the indices of the
          papers that may be candidates in this split. These papers include the correct papers of
          all claims of the split.
        """

    def features(self) -> dict[str, Any]:
        numbers = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding="bytes")
        texts = {name: tfds.features.Text() for name in ("paper", "claim")}
        scores = tfds.features.Tensor(shape=(None,), dtype=np.float32, encoding="bytes")
        return {**texts, "candidates": numbers, "relevant": numbers, "bm25": scores}

    def list_texts(self, example: Example) -> tuple[str]:
        return (example["claim"],)

    def read_splits(self) -> dict[str, Iterable[Example]]:
        papers, claims, pools = self.read_claims()
        indexes: dict[tuple[int, ...], Bm25] = {}
        splits: dict[str, Iterable[Example]] = {"papers": [{"paper": text} for text in papers]}
        for split in SPLITS:
            pool = tuple(pools[split])
            if pool not in indexes:
                indexes[pool] = Bm25([papers[i] for i in pool])
            splits[split] = self._make_examples(split, claims[split], pool, indexes[pool])
        return splits

    def _make_examples(
        self, split: str, claims: list[Claim], pool: tuple[int, ...], index: Bm25
    ) -> Iterator[Example]:
        """Yield the examples of a split.

        `pool` has the indices of the papers that may be candidates. Text i of `index` is the text
        of paper `pool[i]`.
        """
        generator = random.Random(f"{self.name} {split}")
        place = {paper: i for i, paper in enumerate(pool)}
        for claim in claims:
            excluded = {place[i] for i in claim.right + claim.doubtful if i in place}
            scores = index.scores(claim.text)
            nearest = index.nearest(claim.text, HARD_NEGATIVES, without=excluded)
            wrong_papers = [pool[i] for i in nearest]
            groups = [(i,) for i in claim.right] if split == "train" else [claim.right]
            for right in groups:
                count = min(max(CANDIDATES[split] - len(right), 0), len(wrong_papers))
                if split == "train":
                    wrong = generator.sample(wrong_papers, count)
                else:
                    wrong = wrong_papers[:count]
                candidates = [*right, *wrong]
                generator.shuffle(candidates)
                yield {
                    "claim": claim.text,
                    "candidates": np.asarray(candidates, np.int32),
                    "relevant": np.asarray([i in right for i in candidates], np.int32),
                    "bm25": np.asarray([scores[place[i]] for i in candidates], np.float32),
                }


def load_candidates(builder: ClaimBuilder, split: str) -> CandidatePairs:
    """Load all pairs (claim, candidate paper) of a split as texts.

    Args:
      builder: Data set to load from.
      split: `train`, `validation` or `test`.
    """
    papers = [row["paper"] for row in load_split(builder, "papers")]
    rows = load_split(builder, split)
    return CandidatePairs(
        [row["claim"] for row in rows for _ in row["candidates"]],
        [papers[i] for row in rows for i in row["candidates"]],
        Ragged.from_rows([row["relevant"] for row in rows]),
        Ragged.from_rows([row["bm25"] for row in rows], np.float32),
    )


def draw_splits(keys: Sequence[Hashable], *, seed: str) -> list[str]:
    """Assign every row to a random split, and return the name of the split of each row.

    Rows with equal keys are in the same split. The split train has 70 percent of the distinct keys,
    validation 10 percent, and test 20 percent.

    Args:
      keys: Key of every row.
      seed: Seed of the random choice, any text.
    """
    distinct = list(dict.fromkeys(keys))
    sizes = [round(len(distinct) * tenths / 10) for tenths in (1, 2)]
    validation, test = draw_disjoint(len(distinct), sizes, seed=seed)
    number = {key: i for i, key in enumerate(distinct)}
    return [
        "validation" if number[key] in validation else "test" if number[key] in test else "train"
        for key in keys
    ]
