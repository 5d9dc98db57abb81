"""Cross-genre-IR (Zuo et al. 2020): rank scientific papers by their support for a news claim."""

from collections.abc import Sequence
from pathlib import Path

from distattn_jax.data.files import DataError
from distattn_jax.data.rows import find_file, read_rows
from distattn_jax.datasets.claim_builder import SPLITS, Claim, ClaimBuilder, draw_splits


class CrossGenre(ClaimBuilder):
    """Cross-genre-IR, from the three files `claims`, `papers` and `pairs`.

    Each file is .csv, .tsv, .jsonl or .json, plain or .gz, and has these columns:

    - `claims`: id, claim, and optionally split (train, validation or test).
    - `papers`: id, title, abstract. The text of a paper is title and abstract, joined by a space.
    - `pairs`: claim (the id of a claim) and paper (the id of a paper that supports this claim).

    The published files have a different layout and must be converted to this layout. Claims without
    a paper are left out. All papers may be candidates in every split.

    If the file `claims` has no column split, the splits are drawn at random. Claims that share a
    paper form a group, and the groups are divided: 70 percent for train, 10 percent for validation
    and 20 percent for test.
    """

    REQUIRED_FILES = "claims, papers and pairs (.jsonl, .csv or .tsv)"

    def find_files(self) -> dict[str, Path]:
        return {stem: find_file(self.manual_dir, stem) for stem in ("claims", "papers", "pairs")}

    def read_claims(self) -> tuple[list[str], dict[str, list[Claim]], dict[str, Sequence[int]]]:
        papers = self._read_papers()
        numbers = {name: i for i, name in enumerate(papers)}
        texts, split_of_claim = self._read_claim_texts()
        right = self._read_pairs(texts, numbers)
        claims: list[Claim] = []
        splits: list[str | None] = []
        for name, text in texts.items():
            if right[name]:
                claims.append(Claim(text, tuple(dict.fromkeys(right[name]))))
                splits.append(split_of_claim[name])
            else:
                self.leave_out("claims without a paper")
        if None in splits:
            groups = _group_by_shared_papers([claim.right for claim in claims])
            splits = [*draw_splits(groups, seed=self.name)]
        by_split = {
            name: [claim for claim, split in zip(claims, splits, strict=True) if split == name]
            for name in SPLITS
        }
        return list(papers.values()), by_split, dict.fromkeys(SPLITS, range(len(papers)))

    def _read_pairs(self, claims: dict[str, str], papers: dict[str, int]) -> dict[str, list[int]]:
        """Return a dict from the id of a claim to the indices of the papers that support it.

        `claims` is a dict from the id of a claim to its text, and `papers` a dict from the id of a
        paper to its index.
        """
        right: dict[str, list[int]] = {name: [] for name in claims}
        path = self.raw_files["pairs"]
        for line, row in read_rows(path, columns=("claim", "paper")):
            for column, known in (("claim", claims), ("paper", papers)):
                if row[column] not in known:
                    raise DataError(
                        f"{path}:{line}: {column} must be an id of "
                        f"{self.raw_files[column + 's'].name}; got {row[column]!r}."
                    )
            right[row["claim"]].append(papers[row["paper"]])
        return right

    def _read_papers(self) -> dict[str, str]:
        """Return a dict from the id of a paper to its text."""
        path, papers = self.raw_files["papers"], dict[str, str]()
        for line, row in read_rows(path, columns=("id", "title", "abstract")):
            text = f"{row['title'].strip()} {row['abstract'].strip()}".strip()
            if not text:
                raise DataError(f"{path}:{line}: title and abstract are both empty.")
            _add_text(papers, row["id"], text, f"{path}:{line}")
        return papers

    def _read_claim_texts(self) -> tuple[dict[str, str], dict[str, str | None]]:
        """Return the text and the split of every claim, as two dicts with the claim id as key.

        All splits are None if the file has no column `split`.
        """
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
            _add_text(texts, row["id"], row["claim"].strip(), f"{path}:{line}")
            splits[row["id"]] = split
        return texts, splits


def _group_by_shared_papers(papers: Sequence[Sequence[int]]) -> list[int]:
    """Return a group index for every claim. Claims that share a paper are in the same group.

    If claims A and B share a paper, and B and C share another paper, then A, B and C are in the
    same group. `papers` has the indices of the papers that support each claim.
    """
    group_of_paper: dict[int, int] = {}
    for claim_papers in papers:
        joined = {group_of_paper[paper] for paper in claim_papers if paper in group_of_paper}
        group = min((*joined, *claim_papers))
        group_of_paper |= dict.fromkeys(claim_papers, group)
        for paper, other in group_of_paper.items():
            if other in joined:
                group_of_paper[paper] = group
    return [group_of_paper[claim_papers[0]] for claim_papers in papers]


def _add_text(texts: dict[str, str], name: str, text: str, location: str) -> None:
    """Add the text with the id `name` to the dict `texts`, whose keys are ids.

    Raise `DataError` if the id is already in the dict. The error message begins with `location`.
    """
    if name in texts:
        raise DataError(f"{location}: the id {name!r} occurs twice.")
    texts[name] = text
