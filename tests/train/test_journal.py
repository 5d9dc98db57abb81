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

    def kill_before(calls, function):
        """Return a function that ends the process instead of the call with this number."""

        def call(*arguments):
            nonlocal calls
            calls -= 1
            if not calls:
                raise Killed
            return function(*arguments)

        return call

    for calls in (1, 2):  # the digest, then the metrics
        for name in ("fsync", "replace"):  # before the new file is complete, and before its rename
            with monkeypatch.context() as patch:
                patch.setattr(os, name, kill_before(calls, getattr(os, name)))
                with pytest.raises(Killed):
                    Journal(folder, resume_at=10, tensorboard=False)
            assert [line["step"] for line in read(folder)] == [10, 20, 30]
    Journal(folder, resume_at=10, tensorboard=False)
    assert [line["step"] for line in read(folder)] == [10]


def test_a_line_that_a_killed_process_left_incomplete_is_dropped(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 40, "train/lo')
    assert [line["step"] for line in read(folder)] == [10, 20, 30]
    Journal(folder, resume_at=40, tensorboard=False)
    assert path.read_text().endswith('{"step": 30, "train/loss": [30.0, 0.5]}\n')


def shorten(folder, line):
    """Remove one line of the metrics."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    del lines[line]
    path.write_text("".join(lines))


@pytest.fixture
def resumable(tmp_path):
    """The folder of a run with a checkpoint of step 25, after metrics of training and validation.

    The process was killed after the metrics of step 30.
    """
    folder = epath.Path(tmp_path)
    journal = Journal(folder, tensorboard=False)
    for step, name in ((10, "train/loss"), (20, "train/loss"), (25, "validation/loss")):
        journal.write(step, {name: np.array([1.0])})
    journal.flush()
    journal.write(30, {"train/loss": np.array([1.0])})
    return folder


def resume(folder):
    Journal(folder, resume_at=25, last_window=20, tensorboard=False)
    return [line["step"] for line in read(folder)]


def test_a_shortened_file_is_not_resumed(resumable):
    assert resume(resumable) == [10, 20, 25]
    shorten(resumable, -1)
    message = r"metrics.jsonl: must contain the 3 lines that the run has saved; got 2\. Restore"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            resume(resumable)
    (resumable / "metrics.jsonl").unlink()
    assert resume(resumable) == []
    assert resume(resumable) == []  # killed before the next metrics


@pytest.mark.parametrize("line", range(3))
def test_a_file_without_one_line_before_the_checkpoint_is_not_resumed(resumable, line):
    shorten(resumable, line)
    with pytest.raises(DataError, match=r"metrics.jsonl: its first 3 lines changed after .* Res"):
        resume(resumable)


def test_a_damaged_digest_is_an_error_that_says_what_to_do(resumable):
    (resumable / "metrics_digest.json").write_text('{"lines": -1}')
    with pytest.raises(DataError, match=r"metrics_digest.json: must contain .* Remove it to resu"):
        resume(resumable)


def test_a_shortened_file_of_an_older_version_is_not_resumed(resumable):
    """Older versions stored no digest, but a checkpoint knows its last metrics of training."""
    (resumable / "metrics_digest.json").unlink()
    shorten(resumable, 1)
    message = r"must contain the training metrics of step 20, .* step 10"
    with pytest.raises(DataError, match=message):
        resume(resumable)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_line_for_which_no_space_is_left_is_not_expected_on_resume(resumable):
    journal = Journal(resumable, resume_at=25, tensorboard=False)
    path, aside = resumable / "metrics.jsonl", resumable / "aside"
    path.rename(aside)
    os.symlink("/dev/full", path)
    with pytest.raises(OSError, match="No space left on device"):
        journal.write(30, {"train/loss": np.array([1.0])})
    aside.replace(path)
    journal.close()
    assert resume(resumable) == [10, 20, 25]
