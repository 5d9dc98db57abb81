"""The demonstration's task, and that its job runs."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import demo


def test_labels_are_the_nearest_opinion():
    task = demo.draw(jax.random.key(0), 12, batch=20)
    for tokens, labels, counts in zip(*map(np.asarray, task), strict=True):
        places = np.flatnonzero(tokens)
        for i in range(12):
            distances = sorted((abs(i - place), place) for place in places)
            tie = len(distances) > 1 and distances[0][0] == distances[1][0]
            assert counts[i] == (len(distances) > 0 and not tie)
            if counts[i]:
                assert labels[i] == tokens[distances[0][1]] - 1


def test_the_mean_is_over_what_counts():
    entries, counts = jnp.asarray([1.0, 5.0, 9.0]), jnp.asarray([True, False, True])
    assert demo.mean_over(entries, counts) == 5


def test_the_job_trains_and_prints_what_it_measured(monkeypatch, capsys):
    monkeypatch.setattr(demo, "STEPS", 2)
    monkeypatch.setattr(demo, "MODELS", {"distance-aware": demo.MODELS["distance-aware"]})
    demo.main()
    printed = capsys.readouterr().out
    assert "distance-aware  " in printed
    assert "head 3: w =" in printed
