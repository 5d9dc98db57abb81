"""Short runs in this process, for tests of the training loop and of trained models."""

import contextlib

import jax

from distattn_jax import sharding
from distattn_jax.tasks import make_trainer, open_task_run, prepare
from distattn_jax.train.options import replace_options
from tests.train.driver import make_config, run_directory


class StoppedError(Exception):
    """Raised by a test in the middle of a run."""


def short_config(texts, output, **changes):
    """Return a config of thirty steps, with dropout, a learning-rate schedule and two seeds.

    Args:
      texts: Folder of the data set.
      output: Folder of the runs.
      **changes: Further options, by dotted name.
    """
    return replace_options(
        make_config(texts),
        {
            "epochs": 3.0,
            "output.directory": str(output),
            "output.log_every": 5,
            "output.evaluate_every": 15,
            "output.checkpoint_every": 10,
            **changes,
        },
    )


def train(config, mesh=(1, 1), stop_at=None):
    """Train to the end, or stop after `stop_at` steps or a few more, and return the run folder."""

    def stop(step, state):
        if stop_at is not None and step >= stop_at:
            raise StoppedError

    prepared = prepare(config)
    run = open_task_run(prepared.config, prepared)
    trainer = make_trainer(prepared.config, prepared, sharding.make_mesh(*mesh))
    try:
        run.write_result(trainer.measure(trainer.fit(run, stop)))
    except StoppedError:
        assert stop_at is not None
    return run_directory(config)


@contextlib.contextmanager
def keep_compiled(folder):
    """Keep compiled programs in a folder, so that similar runs compile only once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(folder), 0.0), strict=True):
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
