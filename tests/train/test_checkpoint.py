"""What is written comes back as it was, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from distattn_jax import sharding
from distattn_jax.train.checkpoint import Checkpoints, fingerprint

# An error inside Orbax leaves coroutines behind that nobody awaits.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def tree_of(number, mesh):
    tree = {
        "kernel": jnp.arange(64, dtype=jnp.float32).reshape(8, 8) + number,
        "key": jax.random.split(jax.random.key(number), 3),
        "step": jnp.int32(number),
        "half": jnp.full((4,), number, jnp.bfloat16),
    }
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def like(tree, mesh):
    replicated = sharding.replicated(mesh)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), tree
    )


@pytest.fixture
def mesh():
    return sharding.make_mesh(1, 1)


@pytest.fixture
def saved(tmp_path, mesh):
    """Checkpoints of the steps 1, 2 and 3, of which two are kept."""
    with Checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, tree_of(step, mesh), iterator={"next_index": step})
    return tmp_path / "checkpoints"


def restored(folder, mesh):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(like(tree_of(0, mesh), mesh))


def assert_is_step(found, number, mesh):
    step, tree, iterator = found
    assert (step, iterator) == (number, {"next_index": number})
    same = jax.tree.map(lambda a, b: bool((a == b).all()), tree, tree_of(number, mesh))
    assert all(jax.tree.leaves(same))


def test_the_newest_comes_back_bit_for_bit_and_the_oldest_is_gone(saved, mesh):
    assert_is_step(restored(saved, mesh), 3, mesh)
    assert sorted(path.name for path in saved.iterdir()) == ["2", "3"]


def test_nothing_comes_back_where_there_is_nothing(tmp_path, mesh):
    assert restored(tmp_path / "none", mesh) is None


def cut_short(folder):
    for path in folder.rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_arrays(folder):
    for path in folder.rglob("d/*"):
        path.unlink()


def without_metadata(folder):
    (folder / "_CHECKPOINT_METADATA").write_text("")
    (folder / "training" / "_METADATA").unlink()


@pytest.mark.parametrize("damage", [cut_short, without_arrays, without_metadata])
def test_a_damaged_one_is_named_and_the_one_before_it_is_used(saved, mesh, damage, capfd):
    damage(saved / "3")
    assert_is_step(restored(saved, mesh), 2, mesh)
    said = capfd.readouterr().err
    assert f"The checkpoint {saved / '3'} is damaged" in said
    assert "the one before it is used" in said


def test_arrays_that_changed_on_disk_are_noticed(tmp_path, mesh, capsys):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, tree_of(1, mesh), iterator=None)
        checkpoints.save(2, tree_of(2, mesh), iterator=None)
    with Checkpoints(folder) as checkpoints:  # as a disk would, but so that Orbax cannot see it
        forged = {**tree_of(2, mesh), "step": jnp.int32(7)}
        writer = checkpoints._checkpointer
        content = {"training": {"tree": forged, "fingerprint": fingerprint(tree_of(2, mesh))}}
        writer.save_checkpointables(2, content, force=True, overwrite=True)
    assert restored(folder, mesh)[0] == 1
    assert "its arrays are not those that were written" in capsys.readouterr().err


def test_a_step_may_be_saved_again(saved, mesh):
    with Checkpoints(saved) as checkpoints:
        checkpoints.save(3, tree_of(9, mesh), iterator={"next_index": 9})
    step, tree, iterator = restored(saved, mesh)
    assert (step, int(tree["step"]), iterator) == (3, 9, {"next_index": 9})


def test_a_fingerprint_sees_every_element_and_no_mesh(eight_devices, mesh):
    tree = tree_of(1, mesh)
    before = np.asarray(fingerprint(tree))
    mesh = sharding.make_mesh(4, 2)
    moved = jax.device_put(tree, sharding.replicated(mesh))
    spread = NamedSharding(mesh, PartitionSpec("data", "model"))
    moved["kernel"] = jax.device_put(tree["kernel"], spread)
    assert (np.asarray(fingerprint(moved)) == before).all()
    for i, j in ((0, 0), (3, 4), (7, 7)):
        changed = {**tree, "kernel": tree["kernel"].at[i, j].add(1e-3)}
        assert (np.asarray(fingerprint(changed)) != before).any()
    swapped = {**tree, "kernel": tree["kernel"].at[0, :2].set(tree["kernel"][0, 1::-1])}
    assert (np.asarray(fingerprint(swapped)) != before).any()
