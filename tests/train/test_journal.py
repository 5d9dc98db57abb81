"""metrics.jsonl: one line for each step, kept whole when a run is killed and resumed."""

import os

import numpy as np
import pytest
from etils import epath

from distattn_jax.data import DataError
from distattn_jax.train.journal import Journal, read


@pytest.fixture
def folder(tmp_path):
    """The folder of a run with the metrics of the steps 10, 20 and 30."""
    journal = Journal(epath.Path(tmp_path), tensorboard=False)
    for step in (10, 20, 30):
        journal.write(step, {"train/loss": np.array([step, 0.5])})
    journal.close()
    return epath.Path(tmp_path)


def test_a_resumed_run_keeps_the_lines_up_to_its_checkpoint(folder):
    assert read(folder)[1] == {"step": 20, "train/loss": [20.0, 0.5]}
    Journal(folder, resume_at=20, tensorboard=False).write(25, {"train/loss": np.array([1, 2])})
    assert [line["step"] for line in read(folder)] == [10, 20, 25]


def test_a_process_killed_while_it_resumes_loses_no_line(folder, monkeypatch):
    class Killed(BaseException):
        """End of the process, which no handler of errors sees."""

    def kill(*_):
        raise Killed

    for name in ("fsync", "replace"):  # before the new file is complete, and before it is renamed
        with monkeypatch.context() as patch:
            patch.setattr(os, name, kill)
            with pytest.raises(Killed):
                Journal(folder, resume_at=10, tensorboard=False)
        assert [line["step"] for line in read(folder)] == [10, 20, 30]


def test_a_line_that_a_killed_process_left_incomplete_is_dropped(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 40, "train/lo')
    assert [line["step"] for line in read(folder)] == [10, 20, 30]
    Journal(folder, resume_at=40, tensorboard=False)
    assert path.read_text().endswith('{"step": 30, "train/loss": [30.0, 0.5]}\n')


def test_a_shortened_file_is_not_resumed(tmp_path):
    """The checkpoint of step 25 was saved after the metrics of step 20."""
    folder = epath.Path(tmp_path)
    journal = Journal(folder, tensorboard=False)
    for step in (10, 20):
        journal.write(step, {"train/loss": np.array([1.0])})
    Journal(folder, resume_at=25, last_window=20, tensorboard=False)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().split("\n")[0] + "\n")
    with pytest.raises(
        DataError, match=r"must contain the training metrics of step 20, .* step 10"
    ):
        Journal(folder, resume_at=25, last_window=20, tensorboard=False)
    path.unlink()
    Journal(folder, resume_at=25, last_window=20, tensorboard=False)
