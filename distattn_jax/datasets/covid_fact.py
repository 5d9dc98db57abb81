"""COVID-Fact: rank evidence by its support for a claim. A public substitute for Cross-genre-IR."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.files import DataError, parse_json, read_lines
from distattn_jax.datasets.claim_builder import SPLITS, Claim, ClaimBuilder, draw_splits

LABELS = ("SUPPORTED", "REFUTED")
FILE_NAMES = ("claims.jsonl", "COVIDFACT_dataset.jsonl")


class CovidFact(ClaimBuilder):
    """COVID-Fact (Saakyan et al. 2021), from COVIDFACT_dataset.jsonl or claims.jsonl.

    Each line has claim, label, evidence (a list of sentences) and gold_source. Only claims with the
    label SUPPORTED are used, because the refuted claims were made from the supported claims by
    replacing words. This data set has no papers. The evidence of a claim, its sentences joined by
    spaces, is used as the correct paper.

    The sources are divided at random: 70 percent for train, 10 percent for validation and 20
    percent for test. All claims with the same source are in the same split. All candidates of a
    claim come from the split of the claim. Evidence from the source of the claim is never a wrong
    candidate.
    """

    # The digest was computed from the file in this commit of the repository.
    URLS: ClassVar[dict[str, str]] = {
        "https://raw.githubusercontent.com/asaakyan/covidfact/"
        "ceeb613cde5a6c19dea4f2c165654e510ff52b10/COVIDFACT_dataset.jsonl": (
            "sha256:9d4974209ffc872566111ce7ed2fbd422245c3dba2a5ec30de61af38f061c7e3"
        )
    }
    HOMEPAGE = "https://github.com/asaakyan/covidfact"
    PUBLISHED_ROWS: ClassVar = {"papers": 1_290, "train": 907, "validation": 128, "test": 256}

    def find_files(self) -> dict[str, Path]:
        paths = [self.manual_dir / name for name in FILE_NAMES]
        found = [path for path in paths if path.is_file()]
        if len(found) != 1:
            raise DataError(
                f"{self.manual_dir}: must contain one of {FILE_NAMES}; found {len(found)}."
            )
        return {"claims": found[0]}

    def read_claims(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        sources: dict[tuple[str, str], str] = {}  # source of each claim and evidence
        for claim, label, evidence, source in self._read_rows():
            if label != "SUPPORTED":
                self.leave_out("claims that are not supported")
            elif (claim, evidence) in sources:
                self.leave_out("claims that come twice, with the same evidence")
            else:
                sources[claim, evidence] = source
        papers = list(dict.fromkeys(evidence for _, evidence in sources))
        numbers = {evidence: i for i, evidence in enumerate(papers)}
        papers_of_source: dict[str, list[int]] = {}
        for (_, evidence), source in sources.items():
            papers_of_source.setdefault(source, []).append(numbers[evidence])
        claims: dict[str, list[Claim]] = {split: [] for split in SPLITS}
        pools: dict[str, list[int]] = {split: [] for split in SPLITS}
        splits = draw_splits(list(sources.values()), seed=self.name)
        for split, ((text, evidence), source) in zip(splits, sources.items(), strict=True):
            number = numbers[evidence]
            claims[split].append(Claim(text, (number,), tuple(papers_of_source[source])))
            pools[split].append(number)
        return papers, claims, {split: sorted(set(pool)) for split, pool in pools.items()}

    def _read_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the claim, label, evidence and source of every line of the raw file."""
        path = self.raw_files["claims"]
        for line, text in read_lines(path):
            row = parse_json(text, f"{path}:{line}")
            columns = ("claim", "label", "evidence", "gold_source")
            if not isinstance(row, dict) or not all(column in row for column in columns):
                raise DataError(f"{path}:{line}: must be an object with {columns}.")
            sentences = row["evidence"]
            is_texts = isinstance(sentences, list) and all(isinstance(s, str) for s in sentences)
            if not is_texts or not "".join(sentences).strip():
                raise DataError(
                    f"{path}:{line}: evidence must be a list of sentences; "
                    f"got {str(sentences)[:40]}."
                )
            if not isinstance(row["claim"], str) or not row["claim"].strip():
                raise DataError(
                    f"{path}:{line}: claim must be a text; got {str(row['claim'])[:40]!r}."
                )
            if row["label"] not in LABELS:
                raise DataError(
                    f"{path}:{line}: label must be one of {LABELS}; got {str(row['label'])[:40]!r}."
                )
            evidence = " ".join(" ".join(sentences).split())
            yield row["claim"].strip(), row["label"], evidence, str(row["gold_source"])
