"""Tests of Cross-genre-IR, and of everything that data sets of claims share."""

import collections
import json
import math
import re

import numpy as np
import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import CrossGenre, load_candidates

SPLITS = ("train", "validation", "test")
PAPERS = [{"id": f"p{i}", "title": f"Drug {i}", "abstract": f" trial {i % 7} "} for i in range(50)]
CLAIMS = [
    {"id": f"c{i}", "claim": f"Drug {i} works, trial {i % 7} says", "split": SPLITS[i % 3]}
    for i in range(12)
]
PAIRS = [{"claim": f"c{i}", "paper": f"p{i}"} for i in range(12)] + [{"claim": "c0", "paper": "p8"}]


def make_builder(folder, **files):
    files = {"claims": CLAIMS, "papers": PAPERS, "pairs": PAIRS} | files
    for name, rows in files.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    return CrossGenre(manual_dir=folder, data_dir=folder / "data")


def find_right(row):
    return row["candidates"][row["relevant"] == 1].tolist()


def test_candidates_are_right_papers_and_the_nearest_wrong_ones(tmp_path):
    builder = make_builder(tmp_path)
    papers = [row["paper"] for row in load_split(builder, "papers")]
    assert papers[:2] == ["Drug 0 trial 0", "Drug 1 trial 1"]
    train = load_split(builder, "train")
    # Claim c0 has two papers and makes two examples. Each example has one right paper of five.
    assert [row["claim"].split()[1] for row in train] == ["0", "0", "3", "6", "9"]
    assert [len(row["candidates"]) for row in train] == [5] * 5
    assert [find_right(row) for row in train] == [[0], [8], [3], [6], [9]]
    assert not {0, 8} & {i for row in train[:2] for i in row["candidates"][row["relevant"] == 0]}
    for split, numbers in (("validation", [1, 4, 7, 10]), ("test", [2, 5, 8, 11])):
        rows = load_split(builder, split)
        assert [find_right(row) for row in rows] == [[i] for i in numbers]
        for number, row in zip(numbers, rows, strict=True):
            assert len(set(row["candidates"].tolist())) == 30
            assert {i for i in range(50) if i % 7 == number % 7} <= set(row["candidates"].tolist())
    places = {int(row["relevant"].argmax()) for row in train + rows}
    assert len(places) > 2  # The right paper is not always the first.


def test_a_validation_claim_with_several_papers_is_one_example(tmp_path):
    builder = make_builder(tmp_path, pairs=[*PAIRS, {"claim": "c1", "paper": "p9"}])
    first = load_split(builder, "validation")[0]
    assert sorted(find_right(first)) == [1, 9]
    assert len(first["candidates"]) == 30


def test_load_candidates_returns_one_pair_per_candidate(tmp_path):
    builder = make_builder(tmp_path)
    found = load_candidates(builder, "test")
    rows = load_split(builder, "test")
    assert found.relevant.lengths.tolist() == [30] * 4
    assert len(found.claims) == len(found.papers) == 120
    assert found.claims[30:60] == [rows[1]["claim"]] * 30
    np.testing.assert_array_equal(found.relevant.values[30:60], rows[1]["relevant"])
    at = 30 + int(rows[1]["relevant"].argmax())
    assert found.papers[at] == "Drug 5 trial 5"


def test_candidates_have_the_bm25_score_for_their_claim(tmp_path):
    papers = [("p0", "Masks", "work"), ("p1", "masks", ""), ("p2", "A virus", "spreads")]
    builder = make_builder(
        tmp_path,
        claims=[{"id": split, "claim": "Masks?", "split": split} for split in SPLITS],
        papers=[dict(zip(("id", "title", "abstract"), paper, strict=True)) for paper in papers],
        pairs=[{"claim": split, "paper": "p0"} for split in SPLITS],
    )
    # The papers have 2, 1 and 3 words, 2 on average. Two of them contain "masks", once each.
    idf = math.log(1 + 1.5 / 2.5)
    expected = {"Masks work": idf, "masks": idf * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 1 / 2))}
    for split in SPLITS:
        found = load_candidates(builder, split)
        assert found.bm25.lengths.tolist() == [3]
        scores = dict(zip(found.papers, found.bm25.values.tolist(), strict=True))
        assert scores == pytest.approx({**expected, "A virus spreads": 0})


def test_claims_that_share_any_paper_are_in_one_split(tmp_path):
    claims = [{"id": f"c{i}", "claim": f"Drug {i} works"} for i in range(40)]
    pairs = [{"claim": f"c{i}", "paper": f"p{2 * (i % 20)}"} for i in range(20)]
    pairs += [{"claim": f"c{i}", "paper": f"p{2 * (i % 20) + 1}"} for i in range(40)]
    builder = make_builder(tmp_path, claims=claims, pairs=pairs)
    found = collections.defaultdict(set)
    for split in SPLITS:
        for row in load_split(builder, split):
            for paper in find_right(row):
                found[paper // 2].add(split)
    assert len(found) == 20
    assert all(len(splits) == 1 for splits in found.values())


def test_splits_are_drawn_if_missing_and_claims_on_one_paper_are_in_one_split(tmp_path):
    claims = [{"id": str(i), "claim": f"Claim {i}"} for i in range(41)]
    pairs = [{"claim": str(i), "paper": f"p{i // 2}"} for i in range(40)]
    builder = make_builder(tmp_path, claims=claims, pairs=pairs)
    for split, size in zip(SPLITS, (14, 2, 4), strict=True):
        papers = collections.Counter(find_right(row)[0] for row in load_split(builder, split))
        assert len(papers) == size
        assert set(papers.values()) == {2}
    assert builder.left_out == {"claims without a paper": 1}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pairs": [*PAIRS, {"claim": "c1", "paper": "p99"}]}, "pairs.jsonl:14: paper must be an"),
        ({"pairs": [{"claim": "x", "paper": "p1"}]}, "pairs.jsonl:1: claim must be an id of clai"),
        ({"papers": [*PAPERS, PAPERS[3]]}, "papers.jsonl:51: the id 'p3' occurs twice"),
        ({"papers": [{"id": "p", "title": "", "abstract": " "}]}, "papers.jsonl:1: title and"),
        ({"claims": [{"id": "c0", "claim": "A", "split": "dev"}]}, "claims.jsonl:1: split must be"),
        ({"claims": [{"id": "c0"}]}, "claims.jsonl:1: must have a value of 'claim'"),
        ({"claims": [CLAIMS[0], {"id": "c", "claim": "A"}]}, "claims.jsonl:2: all claims must"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, files, message):
    with pytest.raises(DataError, match=re.escape(message)):
        make_builder(tmp_path, **files).prepare()


def test_a_claim_in_two_splits_is_found_whatever_its_papers(tmp_path):
    claims = [*CLAIMS[:11], {**CLAIMS[11], "claim": CLAIMS[3]["claim"]}]
    (warning,) = make_builder(tmp_path, claims=claims).describe_repeats()
    expected = "test shares 1 of its 4 claims (25.0 %) with train, e.g. number 4, which is number 3"
    assert warning.startswith(f"warning: {expected} of train.")
