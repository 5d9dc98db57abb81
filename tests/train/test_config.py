"""Config of the training loop: values are checked, and each method gets a config of its own."""

import dataclasses
from typing import ClassVar

import pytest

from distattn_jax import train
from distattn_jax.train.members import list_members


@dataclasses.dataclass(frozen=True)
class SmallModel(train.Options):
    """Options of a model whose methods read different ones."""

    width: tuple[float, ...] = train.option((1.0,), "width", grid=True)
    distance: tuple[float, ...] = train.option((0.5,), "distance", grid=True, methods=("near",))
    limit: int = train.option(9, "limit", methods=("near", "far"))


@dataclasses.dataclass(frozen=True)
class SmallConfig(train.Config):
    """Config of a task that exists only here."""

    task: ClassVar[str] = "small"
    methods: tuple[str, ...] = train.option(
        ("near",), "methods", choices=("near", "far", "other"), changes_result=False
    )
    model: SmallModel = SmallModel()


@pytest.mark.parametrize(
    "fields",
    [
        {"coordinator": "host:1"},
        {"coordinator": "host:1", "processes": 2},
        {"processes": 2, "process": 0},
        {"process": 0},
    ],
)
def test_the_options_of_several_processes_are_given_together(fields):
    with pytest.raises(ValueError, match=r"mesh.coordinator, .* and mesh.process must be given"):
        SmallConfig(mesh=train.MeshConfig(**fields))
    SmallConfig(mesh=train.MeshConfig(coordinator="host:1", processes=2, process=0))


def test_the_parts_of_a_batch_have_equal_sizes():
    with pytest.raises(
        ValueError, match=r"data.batch_size \(6\) must be a multiple of optimizer.accumulate \(4\)"
    ):
        SmallConfig(
            data=train.DataConfig(batch_size=6), optimizer=train.OptimizerConfig(accumulate=4)
        )
    SmallConfig(data=train.DataConfig(batch_size=8), optimizer=train.OptimizerConfig(accumulate=4))


def test_the_config_of_one_method_keeps_all_options_that_the_method_reads():
    config = SmallConfig(methods=("near", "far"), seeds=2, model=SmallModel(distance=(1.0, 2.0)))
    assert config.for_method("near") == dataclasses.replace(config, methods=("near",))
    assert config.for_method("near").method == "near"


def test_options_that_a_method_does_not_read_take_their_defaults():
    model = SmallModel(width=(1.0, 2.0), distance=(3.0, 4.0, 5.0), limit=7)
    config = SmallConfig(methods=("near", "far", "other"), model=model)
    assert config.for_method("far").model == SmallModel(width=(1.0, 2.0), limit=7)
    assert config.for_method("other").model == SmallModel(width=(1.0, 2.0))


def test_settings_that_differ_only_in_unread_options_become_one_setting():
    config = SmallConfig(model=SmallModel(width=(1.0, 2.0), distance=(3.0, 4.0, 5.0)))
    assert len(list_members(config.for_method("near"))) == 6
    assert len(list_members(config.for_method("far"))) == 2
