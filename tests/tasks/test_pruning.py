"""Pruning of attention heads."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from distattn_jax.tasks import measure_pruning, prune_heads, read_split, received_concentration
from distattn_jax.tasks.load import load_parameters, load_task, select_model
from distattn_jax.train import Run
from experiments.commands import heads
from experiments.papers.when_to_use.measures import collect_measures


@pytest.fixture(scope="module")
def letters(letters_run):
    task = load_task(letters_run)
    return task, load_parameters(letters_run, task), read_split(task, "validation")


def test_a_model_without_heads_does_not_look_at_other_tokens(letters):
    task, params, _ = letters
    tokens = jnp.array([[5, 6, 7, 8], [9, 6, 5, 8]])

    def last_logits(pruned):
        model = select_model(task, prune_heads(params, np.array(pruned)), 0)
        return np.asarray(model(tokens, jnp.array([4, 4])).logits[:, -1])

    whole, none = last_logits([[[False, False]]]), last_logits([[[True, True]]])
    assert np.abs(whole[0] - whole[1]).max() > 1e-3
    np.testing.assert_allclose(none[0], none[1], rtol=1e-5)
    first, second = last_logits([[[True, False]]]), last_logits([[[False, True]]])
    assert np.abs(first - second).max() > 1e-3


def test_pruning_no_head_changes_nothing_and_orders_end_without_heads(letters):
    found = measure_pruning(*letters, (0, 1, 2), examples=2)
    for values in found.orders.values():
        np.testing.assert_allclose(values[0], found.whole, rtol=1e-6)
        np.testing.assert_allclose(values[2], found.orders["random"][2], rtol=1e-6)
    one = {name: float(values[1, 0]) for name, values in found.orders.items()}
    heads = {one["smallest absolute w"], one["largest absolute w"]}
    assert len(heads) == 2
    assert one["most even attention"] in heads
    assert min(heads) < one["random"] < max(heads)
    with pytest.raises(ValueError, match=r"counts must be from 0 to 2, the number of heads; got"):
        measure_pruning(*letters, (3,))


def test_concentration_equals_a_loop_over_keys(letters):
    task, params, table = letters
    found = received_concentration(task, params, table, 2)
    model = select_model(task, params, 0)
    expected = []
    for row in range(2):
        tokens = jnp.asarray(table.columns["inputs"].split()[row])[None]
        weights = np.asarray(model(tokens, jnp.array([24]), weights=True).weights)[0, 0]
        received = [[weights[n, :, j].sum() for j in range(24)] for n in range(2)]
        expected.append([24 * sum(m**2 for m in of) / sum(of) ** 2 for of in received])
    np.testing.assert_allclose(found[0, 0], np.mean(expected, axis=0), rtol=1e-4)


def test_the_command_prints_and_stores_measures_of_heads(letters_run, capsys):
    heads.main([str(letters_run), "--lengths", "24", "48", "--json"])
    (document,) = json.loads(capsys.readouterr().out)["runs"]
    stored = json.loads((letters_run / "heads.json").read_text())
    assert document == {"run": str(letters_run), **stored}
    assert stored.keys() == {"weight", "shape", "pruning", "far"}
    printed = "\n".join(heads.describe(stored))
    assert "| layer | w > 0 (% of heads) | mean absolute w | mean v |" in printed
    assert "without 1 of 2 heads" in printed
    assert "| uniform attention | 0.0 |" in printed
    run = Run(epath.Path(letters_run))
    collected = collect_measures({"distance_aware": run})["heads"]["distance_aware"]
    assert np.shape(collected["weight"]) == (1, 1, 2)
    assert np.shape(collected["far"]["48"]["heads"]) == (1, 1, 2)
    assert np.shape(collected["pruning"]["orders"]["random"]) == (1, 3)
