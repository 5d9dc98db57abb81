"""Checkpoints are restored exactly, and damaged checkpoints are skipped."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from distattn_jax import sharding
from distattn_jax.train.checkpoint import Checkpoints, fingerprint

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


@pytest.fixture
def saved(tmp_path, mesh):
    """The directory of checkpoints of the steps 1, 2 and 3, of which the last two are kept."""
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_tree(step, mesh), iterator={"next_index": step})
    return tmp_path / "checkpoints"


def restore(folder, mesh):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(abstract(make_tree(0, mesh), mesh))


def assert_is_checkpoint_of(number, checkpoint, mesh):
    step, tree, iterator = checkpoint
    assert (step, iterator) == (number, {"next_index": number})
    chex.assert_trees_all_equal(tree, make_tree(number, mesh), strict=True)


def test_the_newest_checkpoint_is_restored_exactly_and_the_oldest_is_deleted(saved, mesh):
    assert_is_checkpoint_of(3, restore(saved, mesh), mesh)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "3"]


def test_an_empty_directory_restores_none(tmp_path, mesh):
    assert restore(tmp_path / "none", mesh) is None


def truncate_arrays(folder):
    for path in folder.rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete_arrays(folder):
    for path in folder.rglob("d/*"):
        path.unlink()


def delete_metadata(folder):
    (folder / "_CHECKPOINT_METADATA").write_text("")
    (folder / "training" / "_METADATA").unlink()


@pytest.mark.parametrize("damage", [truncate_arrays, delete_arrays, delete_metadata])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_restored(
    saved, mesh, damage, capfd
):
    damage(saved / "3")
    assert_is_checkpoint_of(2, restore(saved, mesh), mesh)
    message = capfd.readouterr().err
    assert f"The checkpoint {saved / '3'} is damaged" in message
    assert "Trying the previous checkpoint." in message


def test_arrays_that_change_on_disk_are_detected(tmp_path, mesh, capsys):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, make_tree(1, mesh), iterator=None)
        checkpoints.save(2, make_tree(2, mesh), iterator=None)
    with Checkpoints(folder) as checkpoints:  # a valid Orbax checkpoint whose checksums are wrong
        changed = {**make_tree(2, mesh), "step": jnp.int32(7)}
        writer = checkpoints._checkpointer
        content = {"training": {"tree": changed, "fingerprint": fingerprint(make_tree(2, mesh))}}
        writer.save_checkpointables(2, content, force=True, overwrite=True)
    assert restore(folder, mesh)[0] == 1
    assert "its arrays differ from their saved checksums" in capsys.readouterr().err


def test_saving_a_step_again_replaces_its_checkpoint(saved, mesh):
    with Checkpoints(saved) as checkpoints:
        checkpoints.save(3, make_tree(9, mesh), iterator={"next_index": 9})
    step, tree, iterator = restore(saved, mesh)
    assert (step, int(tree["step"]), iterator) == (3, 9, {"next_index": 9})


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
