"""Tests of COVID-Fact."""

import json
import math
import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import CovidFact

SPLITS = ("train", "validation", "test")


def make_row(i, label="SUPPORTED", source=None):
    return {
        "claim": f"Claim {i} ",
        "label": label,
        "evidence": [f"Study {i} of masks. ", f"It found  {i}."],
        "gold_source": f"source {i // 2}" if source is None else source,
        "flair": "Preprint",
    }


ROWS = [make_row(i) for i in range(100)]


def make_builder(folder, rows):
    (folder / "claims.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CovidFact(manual_dir=folder, data_dir=folder / "data")


def test_a_source_is_in_one_split_and_never_a_wrong_candidate_of_its_claim(tmp_path):
    extra = [make_row(3, "REFUTED"), make_row(7), {**make_row(7), "claim": "Claim 7 again"}]
    builder = make_builder(tmp_path, ROWS + extra)
    papers = [row["paper"] for row in load_split(builder, "papers")]
    assert papers[5] == "Study 5 of masks. It found 5."
    assert len(papers) == 100
    sources = {}
    for split, claims, candidates in zip(SPLITS, (70, 10, 20), (5, 9, 19), strict=True):
        rows = load_split(builder, split)
        # The reworded claim is one more example, in the split of its source.
        assert len(rows) - any(row["claim"] == "Claim 7 again" for row in rows) == claims
        sources[split] = set()
        for row in rows:
            # The split is small, so all its papers of other sources are candidates.
            assert len(row["candidates"]) == candidates
            number = int(row["candidates"][row["relevant"] == 1][0])
            assert number == int(row["claim"].split()[1])
            wrong = row["candidates"][row["relevant"] == 0].tolist()
            assert number // 2 not in {i // 2 for i in wrong}
            sources[split] |= {i // 2 for i in [number, *wrong]}
            # All papers have 7 words. Only the right one contains the number of the claim, twice.
            rarity = math.log(1 + (claims - 0.5) / 1.5)
            expected = rarity * 2.5 * 2 / (2 + 1.5) * row["relevant"]
            assert row["bm25"].tolist() == pytest.approx(expected.tolist())
    assert sum(map(len, sources.values())) == len(set.union(*sources.values())) == 50
    assert builder.left_out == {
        "claims that are not supported": 1,
        "claims that come twice, with the same evidence": 1,
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (make_row(0, "MAYBE"), "label must be one of ('SUPPORTED', 'REFUTED'); got 'MAYBE'"),
        ({**make_row(0), "evidence": []}, "evidence must be a list of sentences; got []"),
        ({**make_row(0), "evidence": [["x"]]}, "evidence must be a list of sentences; got [['x']]"),
        ({**make_row(0), "claim": None}, "claim must be a text; got 'None'"),
        ({**make_row(0), "claim": "\ud800"}, "broken JSON, half of a surrogate pair"),
        ({"claim": "A"}, "must be an object with ('claim', 'label', 'evidence', 'gold_source')"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError, match=re.escape(f"claims.jsonl:101: {message}")):
        make_builder(tmp_path, [*ROWS, row]).prepare()


def test_an_integer_of_too_many_digits_is_an_error(tmp_path):
    (tmp_path / "claims.jsonl").write_text('{"claim": ' + "9" * 5000 + "}\n")
    with pytest.raises(DataError, match=r"claims.jsonl:1: broken JSON, a number has too many"):
        CovidFact(manual_dir=tmp_path, data_dir=tmp_path / "data").prepare()


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match=r"one of \('claims.jsonl', 'COVIDFACT_dataset.jsonl'\)"):
        CovidFact(manual_dir=tmp_path, data_dir=tmp_path)
