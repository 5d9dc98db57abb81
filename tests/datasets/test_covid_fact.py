"""COVID-Fact: evidence of a claim among evidence of its own split, by source."""

import json
import math
import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import CovidFact

SPLITS = ("train", "validation", "test")


def row_of(i, label="SUPPORTED", source=None):
    return {
        "claim": f"Claim {i} ",
        "label": label,
        "evidence": [f"Study {i} of masks. ", f"It found  {i}."],
        "gold_source": f"source {i // 2}" if source is None else source,
        "flair": "Preprint",
    }


ROWS = [row_of(i) for i in range(100)]


def builder_of(folder, rows):
    (folder / "claims.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CovidFact(manual_dir=folder, data_dir=folder / "data")


def test_no_source_is_in_two_splits_nor_taken_for_wrong(tmp_path):
    extra = [row_of(3, "REFUTED"), row_of(7), {**row_of(7), "claim": "Claim 7 again"}]
    builder = builder_of(tmp_path, ROWS + extra)
    papers = [row["paper"] for row in load_split(builder, "papers")]
    assert papers[5] == "Study 5 of masks. It found 5."
    assert len(papers) == 100
    sources = {}
    for split, claims, candidates in zip(SPLITS, (70, 10, 20), (5, 9, 19), strict=True):
        rows = load_split(builder, split)
        # The claim that comes again in other words is one more, in the split of its source.
        assert len(rows) - any(row["claim"] == "Claim 7 again" for row in rows) == claims
        sources[split] = set()
        for row in rows:
            # All others of a small split but the one of the same source; nothing of other splits.
            assert len(row["candidates"]) == candidates
            number = int(row["candidates"][row["relevant"] == 1][0])
            assert number == int(row["claim"].split()[1])
            wrong = row["candidates"][row["relevant"] == 0].tolist()
            assert number // 2 not in {i // 2 for i in wrong}
            sources[split] |= {i // 2 for i in [number, *wrong]}
            # There are as many papers, all of 7 words; only the right one has its number, twice.
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
        (row_of(0, "MAYBE"), "label must be one of ('SUPPORTED', 'REFUTED'); got 'MAYBE'"),
        ({**row_of(0), "evidence": []}, "evidence must be a list of sentences; got []"),
        ({"claim": "A"}, "must be an object with ('claim', 'label', 'evidence', 'gold_source')"),
    ],
)
def test_faults_are_named_with_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError, match=re.escape(f"claims.jsonl:101: {message}")):
        builder_of(tmp_path, [*ROWS, row]).prepare()


def test_what_is_looked_for_is_named(tmp_path):
    with pytest.raises(DataError, match=r"one of \('claims.jsonl', 'COVIDFACT_dataset.jsonl'\)"):
        CovidFact(manual_dir=tmp_path, data_dir=tmp_path)
