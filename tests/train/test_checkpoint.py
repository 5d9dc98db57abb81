"""Checkpoints are restored exactly. Damaged checkpoints are named, and never used or deleted."""

import logging
import os
import random
import resource
import shutil
import sys
import threading
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from distattn_jax import sharding
from distattn_jax.train import manifest
from distattn_jax.train.checkpoint import CheckpointError, Checkpoints, fingerprint

# When reading fails, Orbax leaves coroutines that are never awaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def make_tree(number, mesh):
    tree = {
        "kernel": jnp.arange(64, dtype=jnp.float32).reshape(8, 8) + number,
        "key": jax.random.split(jax.random.key(number), 3),
        "step": jnp.int32(number),
        "half": jnp.full((4,), number, jnp.bfloat16),
    }
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def abstract(tree, mesh):
    replicated = sharding.replicated(mesh)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), tree
    )


@pytest.fixture
def mesh():
    return sharding.make_mesh(1, 1)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """The directory of checkpoints of the steps 1, 2 and 3, of which the last two are kept."""
    folder, mesh = tmp_path_factory.mktemp("saved") / "checkpoints", sharding.make_mesh(1, 1)
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_tree(step, mesh))
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    """A copy of `saved_once` that a test may change."""
    return Path(shutil.copytree(saved_once, tmp_path / "checkpoints"))


def restore(folder, mesh):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(abstract(make_tree(0, mesh), mesh))


def assert_is_checkpoint_of(number, checkpoint, mesh):
    step, tree = checkpoint
    assert step == number
    chex.assert_trees_all_equal(tree, make_tree(number, mesh), strict=True)


def list_files(folder, step):
    """Return all files of a checkpoint, with its manifest."""
    files = [path for path in (folder / str(step)).rglob("*") if path.is_file()]
    return [*sorted(files), folder / f"{step}.json"]


def read_all(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_newest_checkpoint_is_restored_exactly_and_the_oldest_is_deleted(saved, mesh):
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "2.json", "3", "3.json"]
    assert restore(saved.parent / "none", mesh) is None
    assert not (saved.parent / "none").exists()


def flip_bits(path):
    content, draw = bytearray(path.read_bytes()), random.Random(0)
    for position in draw.sample(range(len(content)), min(3, len(content))):
        content[position] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip_bits, truncate, delete])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(
    saved_once, tmp_path, mesh, damage, capfd
):
    names = [path.relative_to(saved_once) for path in list_files(saved_once, 3)]
    assert len(names) >= 8
    for name in names:
        if damage is not delete and not (saved_once / name).stat().st_size:
            continue  # An empty file can only be missing.
        folder = Path(shutil.copytree(saved_once, tmp_path / "checkpoints"))
        damage(folder / name)
        assert_is_checkpoint_of(2, restore(folder, mesh), mesh)
        message = capfd.readouterr().err
        problem = f"step 3: {folder / name} is {'missing' if damage is delete else 'damaged'}"
        assert problem in message
        assert "the checkpoint of step 2 is used" in message
        assert len(message.splitlines()) == 2
        shutil.rmtree(folder)


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(saved, mesh):
    delete(saved / "3.json")
    with Checkpoints(saved, keep=2) as checkpoints:
        assert checkpoints.restore(abstract(make_tree(0, mesh), mesh))[0] == 2
        checkpoints.save(4, make_tree(4, mesh))
    assert sorted(path.name for path in saved.iterdir()) == ["2", "2.json", "4", "4.json"]


def test_a_renamed_checkpoint_is_not_mistaken_for_another_step(saved, mesh, capfd):
    (saved / "2").rename(saved / "5")
    (saved / "2.json").rename(saved / "5.json")
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)
    assert f"step 5: {saved / '5.json'} is damaged: it belongs to the checkpoint 2" in (
        capfd.readouterr().err
    )


def test_if_no_checkpoint_is_usable_each_is_named_and_nothing_is_changed(saved, mesh):
    truncate(saved / "3" / "_CHECKPOINT_METADATA")
    delete(saved / "2" / "training" / "_METADATA")
    before = read_all(saved)
    with pytest.raises(CheckpointError, match="no checkpoint can be used") as refused:
        restore(saved, mesh)
    assert f"step 3: {saved / '3' / '_CHECKPOINT_METADATA'} is damaged" in str(refused.value)
    assert f"step 2: {saved / '2' / 'training' / '_METADATA'} is missing" in str(refused.value)
    assert "is used" not in str(refused.value)
    assert read_all(saved) == before


def test_intact_checkpoints_that_do_not_fit_the_model_are_refused_and_kept(saved, mesh, capfd):
    before = read_all(saved)
    changed = abstract({**make_tree(0, mesh), "new": jnp.zeros(3)}, mesh)
    with Checkpoints(saved) as checkpoints, pytest.raises(CheckpointError) as refused:
        checkpoints.restore(changed)
    for step in (2, 3):
        assert f"step {step}: its files are intact, but reading failed: " in str(refused.value)
    assert len(str(refused.value).splitlines()) == 4
    assert capfd.readouterr().err == ""
    assert read_all(saved) == before


def test_arrays_that_change_between_device_and_disk_are_detected(saved, mesh, monkeypatch, capsys):
    with Checkpoints(saved) as checkpoints, monkeypatch.context() as patch:
        wrong = fingerprint(make_tree(4, mesh))
        patch.setattr("distattn_jax.train.checkpoint.fingerprint", lambda _: wrong)
        checkpoints.save(5, make_tree(5, mesh))
    assert restore(saved, mesh)[0] == 3
    assert "step 5: its arrays differ from their saved checksums" in capsys.readouterr().err


def test_a_checkpoint_whose_process_was_killed_is_ignored_and_later_deleted(saved, mesh, capfd):
    manifest.mark_incomplete(epath.Path(saved / "4"))  # killed after Orbax had written its files
    shutil.copytree(saved / "3", saved / "4")
    (saved / "6.orbax-checkpoint-tmp").mkdir()
    (saved / "6.json.123.partial").write_text("{")
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)
    assert capfd.readouterr().err == ""
    with Checkpoints(saved) as checkpoints:
        checkpoints.save(5, make_tree(5, mesh))
    assert sorted(path.name for path in saved.iterdir()) == ["3", "3.json", "5", "5.json"]


def test_older_checkpoints_are_deleted_only_after_a_new_one_is_complete(
    saved, mesh, monkeypatch, capfd
):
    def fail(*_):
        raise OSError(28, "No space left on device")

    before = sorted(path.name for path in saved.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_manifest", fail)
        message = (
            r"the checkpoint of step 4 cannot be written: no space is left on the disk\. "
            r"The newest checkpoint is that of step 3\. .* the same command resumes"
        )
        with pytest.raises(CheckpointError, match=message), Checkpoints(saved) as checkpoints:
            checkpoints.save(4, make_tree(4, mesh))
    assert set(before) <= {path.name for path in saved.iterdir()}
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)
    assert capfd.readouterr().err == ""


def test_threads_that_still_write_after_a_failure_print_no_traceback(tmp_path, monkeypatch):
    """Python reports an error in `__del__` like an error in a callback of such a thread."""

    class FailsAtTheEnd:
        def __init__(self, message):
            self.message = message

        def __del__(self):
            raise RuntimeError(self.message)

    reported = []
    hook = lambda unraisable: reported.append(str(unraisable.exc_value))  # noqa: E731
    monkeypatch.setattr(sys, "unraisablehook", hook)
    with Checkpoints(tmp_path):
        for message in ("Event loop is closed", "other"):
            FailsAtTheEnd(message)
    assert reported == ["other"]
    assert sys.unraisablehook is hook


@pytest.fixture
def small_files(monkeypatch):
    """Limit the size of files, so that writing a large array fails."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # A failure keeps another one.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_error_of_orbax_becomes_one_paragraph(saved, mesh, small_files, capfd):
    noise = np.random.default_rng(0).standard_normal((200, 200))
    noise = jax.device_put(noise, sharding.replicated(mesh))
    message = "the checkpoint of step 4 cannot be written: a file is larger .* that of step 3"
    with pytest.raises(CheckpointError, match=message) as failed, Checkpoints(saved) as checkpoints:
        checkpoints.save(4, {**make_tree(4, mesh), "kernel": noise})
    assert len(str(failed.value).splitlines()) == 1
    assert capfd.readouterr().err == ""
    assert logging.getLogger("absl").filters, "Orbax may log the failure later"
    logging.getLogger("absl").filters.clear()
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)


def test_saving_a_step_again_replaces_its_checkpoint(saved, mesh):
    with Checkpoints(saved) as checkpoints:
        checkpoints.save(3, make_tree(9, mesh))
    step, tree = restore(saved, mesh)
    assert (step, int(tree["step"])) == (3, 9)


def test_checkpoints_leave_no_open_files_and_no_threads(tmp_path, mesh):
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("counts open files in /proc, which this system does not have")
    tree = {"step": make_tree(1, mesh)["step"]}

    def count_after(steps):
        for step in steps:
            checkpoints.save(step, tree)
        checkpoints.wait()
        return len(os.listdir(descriptors)), threading.active_count()

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        files, threads = count_after(range(1, 4))
        more_files, more_threads = count_after(range(4, 44))
    assert more_files < files + 12  # fewer than one for three checkpoints
    assert more_threads < threads + 12


def test_a_fingerprint_depends_on_every_element_but_not_on_the_mesh(eight_devices, mesh):
    tree = make_tree(1, mesh)
    before = np.asarray(fingerprint(tree))
    mesh = sharding.make_mesh(4, 2)
    moved = jax.device_put(tree, sharding.replicated(mesh))
    split_both_axes = NamedSharding(mesh, PartitionSpec("data", "model"))
    moved["kernel"] = jax.device_put(tree["kernel"], split_both_axes)
    assert (np.asarray(fingerprint(moved)) == before).all()
    for i, j in ((0, 0), (3, 4), (7, 7)):
        changed = {**tree, "kernel": tree["kernel"].at[i, j].add(1e-3)}
        assert (np.asarray(fingerprint(changed)) != before).any()
    swapped = {**tree, "kernel": tree["kernel"].at[0, :2].set(tree["kernel"][0, 1::-1])}
    assert (np.asarray(fingerprint(swapped)) != before).any()
