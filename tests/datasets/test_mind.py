"""Tests of MIND and of the synthetic log in its format."""

import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Mind, mind
from tests.datasets.large_log import CLICKED, IMPRESSIONS
from tests.datasets.synthetic_mind import write_mind

ROOT = Path(__file__).parent.parent.parent

NEWS = {
    "train": [("N1", "one"), ("N20", 'say "two"'), ("N3", "three"), ("N4", "four")],
    "dev": [("N4", "four"), ("N5", "fünf"), ("N1", "one")],
}
# Time, history and candidates of each impression. The last day of train is the 14th.
LOGS = {
    "train": [
        ("11/14/2019 12:00:00 AM", "N1 N9 N3", "N20-0 N4-1 N9-1"),
        ("11/9/2019 9:53:12 AM", "", "N1-1 N20-0"),
        ("11/13/2019 11:59:59 PM", "N4", "N1-0 N20-0"),
        ("11/13/2019 1:00:00 PM", "N4 N4", "N1-1 N9-0"),
        ("11/13/2019 1:00:00 PM", "N4 N4", "N1-1 N20-1 N3-0 N4-0"),
        ("11/14/2019 7:30:00 PM", "", "N3-1 N20-0 N1-1"),
    ],
    "dev": [("11/15/2019 3:00:00 AM", "N5 N20", "N1-0 N5-1 N4-0")],
}


class OtherSeed(Mind):
    SEED = 1


def write(folder, news=NEWS, logs=LOGS, names=("train", "dev")):
    for part, name in zip(("train", "dev"), names, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = (
            (id, "news", "more", title, "abstract", "url", "[]", "[]") for id, title in news[part]
        )
        lines = ((str(i), f"U{i}", *row) for i, row in enumerate(logs[part]))
        for file, content in (("news.tsv", rows), ("behaviors.tsv", lines)):
            text = "".join("\t".join(row) + "\n" for row in content)
            (folder / name / file).write_text(text)
    return folder


def make_builder(tmp_path, *, data="data", builder_class=Mind, **arguments):
    return builder_class(manual_dir=write(tmp_path / "raw", **arguments), data_dir=tmp_path / data)


def read_rows(builder, split):
    source = builder.source(split)
    rows = source.__getitems__(range(len(source)))
    assert all(array.dtype == np.int32 for row in rows for array in row)
    return [tuple(array.tolist() for array in row) for row in rows]


def test_impressions_contain_the_numbers_of_known_news(tmp_path):
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = make_builder(tmp_path)
        assert builder.titles == ["", "one", 'say "two"', "three", "four", "fünf"]
        assert [row["title"] for row in load_split(builder, "news")] == builder.titles
        assert read_rows(builder, "validation") == [
            ([1, 3], [2, 4], [0, 1]),
            ([], [3, 2, 1], [1, 0, 1]),
        ]
        assert read_rows(builder, "test") == [([5, 2], [1, 5, 4], [0, 1, 0])]
        assert builder.describe_rows() == (
            "neither MIND-small nor large: 4 rows of train/news, 6 rows of train/behaviors, "
            "3 rows of dev/news, 1 rows of dev/behaviors",
            "left out: 1 clicks of histories on news without a row in news.tsv",
            "left out: 2 candidates without a row in news.tsv",
            "left out: 1 impressions without a click",
            "left out: 1 impressions of clicks alone",
        )


def test_each_click_of_train_is_an_example_with_four_negatives(tmp_path):
    rows = read_rows(make_builder(tmp_path), "train")
    assert [history for history, _, _ in rows] == [[], [4, 4], [4, 4]]
    found = []
    for _, candidates, clicks in rows:
        assert (len(candidates), sorted(clicks)) == (5, [0, 0, 0, 0, 1])
        clicked = candidates[clicks.index(1)]
        found.append((clicked, set(candidates) - {clicked}))
    assert found == [(1, {2}), (1, {3, 4}), (2, {3, 4})]


def test_negatives_depend_on_line_and_seed(tmp_path):
    news = {part: [(f"N{i}", f"title {i}") for i in range(1, 10)] for part in NEWS}
    shown = " ".join(["N1-1", *(f"N{i}-0" for i in range(2, 10))])
    lines = [("11/9/2019 1:00:00 AM", "", shown)] * 300
    lines.append(("11/14/2019 1:00:00 AM", "", "N2-0 N4-1"))
    arguments = {"news": news, "logs": {**LOGS, "train": lines}}
    rows = read_rows(make_builder(tmp_path, **arguments), "train")
    others = Counter()
    for _, candidates, clicks in rows:
        assert len(set(candidates)) == 5
        others.update(set(candidates) - {1})
        assert candidates[clicks.index(1)] == 1
    # Each negative is in half of the lines, and the click at each place in a fifth, within 4 σ.
    assert others.keys() == set(range(2, 10))
    assert all(abs(count - 150) < 35 for count in others.values())
    places = Counter(clicks.index(1) for _, _, clicks in rows)
    assert len(places) == 5
    assert all(abs(count - 60) < 28 for count in places.values())
    assert read_rows(make_builder(tmp_path, data="again", **arguments), "train") == rows
    assert read_rows(make_builder(tmp_path, builder_class=OtherSeed, **arguments), "train") != rows


def test_a_history_is_the_last_50_clicks_on_known_news(tmp_path):
    clicks = " ".join(["N1"] * 7 + ["N9", "N20"] + ["N9", "N3"] * 49)
    log = [("11/15/2019 3:00:00 AM", clicks, "N1-0 N5-1")]
    ((history, _, _),) = read_rows(make_builder(tmp_path, logs={**LOGS, "dev": log}), "test")
    assert history == [2] + [3] * 49


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_examples_do_not_depend_on_the_size_of_shards(tmp_path, monkeypatch, size):
    whole = make_builder(tmp_path, data="whole")
    expected = {split: read_rows(whole, split) for split in ("train", "validation", "test")}
    monkeypatch.setattr(Mind, "SHARD", size)
    sharded = make_builder(tmp_path, data="sharded")
    assert {split: read_rows(sharded, split) for split in expected} == expected
    assert sharded.describe_rows() == whole.describe_rows()
    counts = {name: split.num_examples for name, split in sharded.info.splits.items()}
    if size == 2:  # lines 3 and 4 contain no usable impression
        assert counts == {
            **{"news": 6, "train_0000": 1, "train_0002": 2, "test_0000": 1},
            **{"validation_0000": 1, "validation_0002": 1},
        }


def test_a_source_supports_random_access(tmp_path, monkeypatch):
    monkeypatch.setattr(Mind, "SHARD", 10)
    write_mind(tmp_path / "raw", users=5, news=40, impressions=100, seed=0)
    source = Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data").source("train")
    rows = [source[i] for i in range(len(source))]
    chosen = [len(rows) - 1, 3, 50, 3, 0]
    for row, i in zip(source.__getitems__(chosen), chosen, strict=True):
        np.testing.assert_equal(row, rows[i])
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError, match=rf"i must be in 0 .. {len(rows) - 1}; got {outside}"):
            source[outside]


@pytest.mark.parametrize(
    ("file", "line", "text", "reason"),
    [
        ("train/behaviors", 2, "1\tU\t11/9/2019 1:00:00 AM\tN1 N1-1", "must have 5 fields; got 4"),
        ("dev/behaviors", 1, "1\tU\t11/9/2019 1:00:00 AM\t\tN1 N3", r"ID-0 or ID-1; got 'N1'"),
        ("dev/behaviors", 1, "1\tU\t11/9/2019 1:00:00 AM\t\tN1-2", r"ID-0 or ID-1; got 'N1-2'"),
        ("dev/behaviors", 1, "1\tU\t11/9/2019 1:00:00 AM\t\t-1", r"ID-0 or ID-1; got '-1'"),
        ("train/behaviors", 6, "1\tU\t2019-11-09 01:00\t\tN1-1", r"time .* got '2019-11-09 01:00'"),
        ("train/behaviors", 1, "1\tU\t11/31/2019 1:00:00 AM\t\tN1-1", r"time must be like .*/31/"),
        ("train/behaviors", 1, "1\tU\t11/9/2019 13:00:00 PM\t\tN1-1", r"time must be like .* 13:"),
        ("train/news", 3, "N9\tnews\tmore\ttitle", "must have 8 fields; got 4"),
        ("dev/news", 2, "N1\ta\tb\tother\tc\td\te\tf", r"one title, 'one'; got 'other"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, file, line, text, reason):
    path = write(tmp_path / "raw") / f"{file}.tsv"
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines))
    builder = Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
    with pytest.raises(DataError, match=f"{re.escape(str(path))}:{line}: .*{reason}"):
        builder.prepare()


def test_unreadable_and_unusable_logs_are_errors(tmp_path):
    path = write(tmp_path / "raw") / "dev" / "behaviors.tsv"
    for content, reason in (
        (b"1\tU\xff\t\t\t\n", ":1: not UTF-8"),
        (b"", ": has no rows"),
        (b"1\tU\t11/9/2019 1:00:00 AM\t\tN1-0\n", ": must .* impression for test .* left out"),
    ):
        path.write_bytes(content)
        builder = Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
        with pytest.raises(DataError, match=re.escape(str(path)) + reason):
            builder.prepare()
    one_day = make_builder(tmp_path, logs={**LOGS, "train": LOGS["train"][3:5]})
    with pytest.raises(DataError, match=r"train/behaviors.tsv: .* an impression for train"):
        one_day.prepare()
    with pytest.raises(ValueError, match=r"--split\) must be train, validation or test; got 'dev'"):
        one_day.source("dev")


@pytest.mark.parametrize(
    "names", [("MINDsmall_train", "MINDsmall_dev"), ("train/train", "MINDlarge_dev/MINDlarge_dev")]
)
def test_folders_may_have_the_names_of_the_archives(tmp_path, names):
    assert len(make_builder(tmp_path, names=names).source("train")) == 3


def test_missing_and_duplicate_folders_are_errors(tmp_path):
    write(tmp_path / "raw", names=("train", "MINDsmall_dev"))
    (tmp_path / "raw" / "MINDsmall_dev" / "news.tsv").unlink()
    with pytest.raises(DataError, match=r"one of the folders dev, MINDsmall_dev, .*; found \[\]"):
        Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path)
    write(tmp_path / "raw", names=("MINDsmall_train", "dev"))
    with pytest.raises(DataError, match=r"found \['train', 'MINDsmall_train'\]"):
        Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path)


@pytest.mark.parametrize("inside", ["", "MINDsmall_{}/"])
def test_downloaded_files_must_be_complete(tmp_path, monkeypatch, inside):
    raw, urls = write(tmp_path / "raw"), []
    for part in ("train", "dev"):
        path = tmp_path / f"MINDsmall_{part}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in (raw / part).iterdir():
                archive.write(file, inside.format(part) + file.name)
        urls.append(path.as_uri())
    monkeypatch.setattr(Mind, "URLS", dict.fromkeys(urls, ""))
    with pytest.raises(DataError, match="must contain 51,282 rows of train/news; got 4"):
        Mind(data_dir=tmp_path / "data").prepare()
    sizes = {"train/news": 4, "train/behaviors": 6, "dev/news": 3, "dev/behaviors": 1}
    monkeypatch.setattr(Mind, "PUBLISHED_ROWS", sizes)
    monkeypatch.setattr(mind, "MIND_SMALL", sizes)
    builder = Mind(data_dir=tmp_path / "data")
    assert builder.describe_rows()[0].startswith("all of MIND-small: 4 rows of train/news, ")
    assert len(builder.source("test")) == 1


def test_clicks_of_a_synthetic_log_are_predictable_from_the_history(tmp_path):
    write_mind(tmp_path / "raw", users=30, news=200, impressions=600, seed=0)
    builder = Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
    assert builder.describe_rows() == (
        "neither MIND-small nor large: 150 rows of train/news, 540 rows of train/behaviors, "
        "150 rows of dev/news, 60 rows of dev/behaviors",
    )
    topics = [title.split("word")[0] for title in builder.titles]
    wins = []
    for history, candidates, clicks in read_rows(builder, "test"):
        shared = [sum(topics[i] == topics[j] for j in history) for i in candidates]
        positive = [score for score, clicked in zip(shared, clicks, strict=True) if clicked]
        negative = [score for score, clicked in zip(shared, clicks, strict=True) if not clicked]
        wins += [(x > y) + (x == y) / 2 for x in positive for y in negative]
    assert np.mean(wins) > 0.85


def test_a_synthetic_log_depends_on_its_seed_and_invalid_sizes_are_errors(tmp_path):
    sizes = {"users": 5, "news": 40, "impressions": 20}
    for folder, seed in (("one", 0), ("same", 0), ("other", 1)):
        write_mind(tmp_path / folder, **sizes, seed=seed)
    paths = (tmp_path / folder / "dev" / "behaviors.tsv" for folder in ("one", "same", "other"))
    one, same, other = (path.read_text() for path in paths)
    assert one == same != other
    with pytest.raises(ValueError, match="news must be at least 32; got 31"):
        write_mind(tmp_path / "few", **{**sizes, "news": 31}, seed=0)


def test_preparing_and_reading_need_less_memory_than_the_log(tmp_path):
    command = [sys.executable, "-m", "tests.datasets.large_log", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["read"] >= IMPRESSIONS // CLICKED  # each click of train is an example
    assert found["growth"] < found["log"] / 10


def test_an_impression_in_two_splits_is_found_although_candidates_of_train_are_drawn(tmp_path):
    time = "11/15/2019 3:00:00 AM"
    logs = {**LOGS, "dev": [*LOGS["dev"], (time, *LOGS["train"][4][1:])]}
    news = {**NEWS, "dev": NEWS["train"] + NEWS["dev"][1:2]}
    (warning,) = make_builder(tmp_path, news=news, logs=logs).describe_repeats()
    assert warning.startswith("warning: test shares 1 of its 2 impressions (50.0 %) with train")
