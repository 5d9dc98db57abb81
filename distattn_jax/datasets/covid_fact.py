"""COVID-Fact's claims, each to be found its evidence: a stand-in for Cross-genre-IR."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.rows import DataError, read_lines
from distattn_jax.datasets.cross_genre import SPLITS, Claim, ClaimBuilder, draw_splits

LABELS = ("SUPPORTED", "REFUTED")
NAMES = ("claims.jsonl", "COVIDFACT_dataset.jsonl")


class CovidFact(ClaimBuilder):
    """Saakyan et al. (2021)'s COVIDFACT_dataset.jsonl, which may also be called claims.jsonl.

    Every line has claim, label, evidence (a list of sentences) and gold_source. The claims are
    those that are SUPPORTED, and the sentences of the evidence of each, joined by spaces, are its
    right paper. Refuted ones are left out: they were made of these by changing words.

    A tenth of the sources is drawn for validation and two tenths for test, so that no source is in
    two splits; and the candidates of a claim are evidence of its own split. Evidence of the same
    source is never taken for wrong.
    """

    URLS: ClassVar[tuple[str, ...]] = (
        "https://raw.githubusercontent.com/asaakyan/covidfact/main/COVIDFACT_dataset.jsonl",
    )
    PUBLISHED_ROWS: ClassVar[dict[str, int]] = {
        "papers": 1_290,
        "train": 907,
        "validation": 128,
        "test": 256,
    }

    def find_files(self) -> dict[str, Path]:
        found = [self.manual_dir / name for name in NAMES if (self.manual_dir / name).is_file()]
        if len(found) != 1:
            raise DataError(f"{self.manual_dir}: must hold one of {NAMES}; got {len(found)}.")
        return {"claims": found[0]}

    def read(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        rows: dict[tuple[str, str], str] = {}  # the source of every claim and evidence
        for claim, label, evidence, source in self._rows():
            if label != "SUPPORTED":
                self.leave_out("claims that are not supported")
            elif (claim, evidence) in rows:
                self.leave_out("claims that come twice, with the same evidence")
            else:
                rows[claim, evidence] = source
        papers = list(dict.fromkeys(evidence for _, evidence in rows))
        numbers = {evidence: i for i, evidence in enumerate(papers)}
        of_source: dict[str, list[int]] = {}
        for (_, evidence), source in rows.items():
            of_source.setdefault(source, []).append(numbers[evidence])
        claims: dict[str, list[Claim]] = {split: [] for split in SPLITS}
        pools: dict[str, list[int]] = {split: [] for split in SPLITS}
        splits = draw_splits(list(rows.values()), seed=self.name)
        for split, ((text, evidence), source) in zip(splits, rows.items(), strict=True):
            number = numbers[evidence]
            claims[split].append(Claim(text, (number,), tuple(of_source[source])))
            pools[split].append(number)
        return papers, claims, {split: sorted(set(pool)) for split, pool in pools.items()}

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Claim, label, evidence and source of every line."""
        path = self.raw_files["claims"]
        for line, text in read_lines(path):
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{line}: broken JSON, {error}.") from None
            columns = ("claim", "label", "evidence", "gold_source")
            if not isinstance(row, dict) or not all(column in row for column in columns):
                raise DataError(f"{path}:{line}: must be an object with {columns}.")
            sentences = row["evidence"]
            if not isinstance(sentences, list) or not "".join(map(str, sentences)).strip():
                raise DataError(
                    f"{path}:{line}: evidence must be a list of sentences; got {sentences!r}."
                )
            if row["label"] not in LABELS:
                raise DataError(
                    f"{path}:{line}: label must be one of {LABELS}; got {row['label']!r}."
                )
            evidence = " ".join(" ".join(map(str, sentences)).split())
            yield str(row["claim"]).strip(), row["label"], evidence, str(row["gold_source"])
