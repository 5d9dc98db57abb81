"""Targets from patterns of positions and from relations of words."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from distattn_jax import guiding
from distattn_jax.guiding import PmiTable, arguments, relations
from tests.guiding import oracles
from tests.guiding.cases import CLOSE, draw
from tests.unchecked import as_users_have_it

# The texts "[CLS] cats sleep . [SEP]" and "[CLS] cats [SEP]". The padding of the second has the
# ids of tokens, which must be ignored.
CLS, CATS, SLEEP, STOP, SEP = range(1, 6)
TOKENS = jnp.array([[CLS, CATS, SLEEP, STOP, SEP], [CLS, CATS, SEP, STOP, SEP]])
LENGTHS = jnp.array([5, 3])
T = 5

WORDS = jnp.array([[0, 1, 2, 2, 3, 0], [0, 1, 2, 0, 0, 0]])  # the second word has two tokens
HEADS = jnp.array([[0, 2, 0, 0, 2, 0], [0, 9, 1, 0, 0, 0]])  # word 9 is beyond the end of the text
VECTORS = jnp.array([[0, 1, 1, 2, 3, 1], [0, 4, 1, 2, 1, 1]])
TABLE = jnp.array([[9.0, 9.0], [1.0, 0.0], [3.0, 4.0], [-2.0, 0.0], [0.0, 0.0]])
PMI = PmiTable(
    row_of_token=jnp.array([0, -1, 0, 1, 2, -1]),  # the table holds cats, sleep and the period
    values=jnp.array([[4.0, 3.0, 1.0], [3.0, 0.0, -2.0], [1.0, -2.0, 5.0]]),
)

TARGETS = {
    "first_token": lambda: guiding.first_token(TOKENS, LENGTHS),
    "next_token": lambda: guiding.next_token(TOKENS, LENGTHS),
    "previous_token": lambda: guiding.previous_token(TOKENS, LENGTHS),
    "period": lambda: guiding.period(TOKENS, LENGTHS, periods=(STOP,)),
    "delimiter": lambda: guiding.delimiter(TOKENS, LENGTHS, delimiters=(CLS, SEP)),
    "dependency": lambda: guiding.dependency(WORDS, HEADS, jnp.array([6, 3])),
    "pmi": lambda: guiding.pmi(TOKENS, LENGTHS, PMI),
    "word_similarity": lambda: guiding.word_similarity(VECTORS, jnp.array([6, 4]), TABLE),
}


def row(size, **shares):
    """Return a row of zeros except at the given positions: row(3, at1=0.5) is [0, 0.5, 0]."""
    return [shares.get(f"at{position}", 0) for position in range(size)]


NONE = row(T)


@pytest.mark.parametrize(
    ("name", "full", "short"),
    [
        ("first_token", [row(T, at0=1)] * 5, [row(T, at0=1)] * 3 + [NONE] * 2),
        (
            "next_token",
            [row(T, at1=1), row(T, at2=1), row(T, at3=1), row(T, at4=1), NONE],
            [row(T, at1=1), row(T, at2=1), NONE, NONE, NONE],
        ),
        (
            "previous_token",
            [NONE, row(T, at0=1), row(T, at1=1), row(T, at2=1), row(T, at3=1)],
            [NONE, row(T, at0=1), row(T, at1=1), NONE, NONE],
        ),
        ("period", [row(T, at3=1)] * 5, [NONE] * 5),  # the period of the second text is padding
        ("delimiter", [row(T, at0=0.5, at4=0.5)] * 5, [row(T, at0=0.5, at2=0.5)] * 3 + [NONE] * 2),
        (
            "dependency",
            [row(6), row(6, at2=0.5, at3=0.5), row(6), row(6), row(6, at2=0.5, at3=0.5), row(6)],
            [row(6), row(6), row(6, at1=1), row(6), row(6), row(6)],
        ),
        ("pmi", [NONE, row(T, at2=0.75, at3=0.25), row(T, at1=1), row(T, at1=1), NONE], [NONE] * 5),
        (
            # Cosine of rows 1 and 2: 0.6, of 1 and 3: -1, of 2 and 3: -0.6. Row 4 is zero.
            # Positions 1 and 2 are one word, which occurs again at 5.
            "word_similarity",
            [
                row(6),
                row(6, at3=0.6 / 1.6, at5=1 / 1.6),
                row(6, at3=0.6 / 1.6, at5=1 / 1.6),
                row(6, at1=1 / 3, at2=1 / 3, at5=1 / 3),
                row(6),
                row(6, at1=1 / 2.6, at2=1 / 2.6, at3=0.6 / 2.6),
            ],
            [row(6), row(6), row(6, at3=1), row(6, at2=1), row(6), row(6)],
        ),
    ],
)
def test_targets_equal_those_computed_by_hand(name, full, short):
    found = jax.jit(TARGETS[name])()
    np.testing.assert_allclose(found.weights, [full, short], **CLOSE)
    assert found.weights.dtype == jnp.float32
    assert found.rows.tolist() == [[sum(row) > 0 for row in rows] for rows in (full, short)]


def test_several_tokens_may_be_periods():
    found = jax.jit(lambda: guiding.period(TOKENS, LENGTHS, periods=(STOP, SLEEP)))()
    assert found.weights[0, 0].tolist() == row(T, at2=0.5, at3=0.5)


def test_relations_of_random_words_equal_the_oracle():
    generator = np.random.default_rng(0)
    lengths, size = np.array([9, 4, 1, 0]), 9
    words = np.sort(generator.integers(0, 6, (4, size)))
    heads = generator.integers(0, 7, (4, size))
    tokens = generator.integers(0, 8, (4, size))
    rows, values = np.array([-1, 0, 1, 2, -1, 3, 4, 5]), draw(1, 6, 6)
    vectors, table = generator.integers(0, 5, (4, size)), draw(2, 5, 3)

    def is_head(b, i, j):
        return float(heads[b, i] > 0 and heads[b, i] == words[b, j])

    def pmi_score(b, i, j):
        first, second = rows[tokens[b, i]], rows[tokens[b, j]]
        return values[first, second] if i != j and min(first, second) >= 0 else 0.0

    def cosine(b, i, j):
        between = vectors[b, min(i, j) : max(i, j) + 1]
        if min(vectors[b, i], vectors[b, j]) == 0 or len(set(between)) == 1:
            return 0.0
        x, y = table[vectors[b, i]].astype(float), table[vectors[b, j]].astype(float)
        return x @ y / np.sqrt((x @ x) * (y @ y))

    for found, score in (
        (jax.jit(guiding.dependency)(words, heads, lengths), is_head),
        (jax.jit(guiding.pmi)(tokens, lengths, PmiTable(rows, values)), pmi_score),
        (jax.jit(guiding.word_similarity)(vectors, lengths, table), cosine),
    ):
        expected_rows, expected = oracles.target(lengths, size, score)
        assert expected_rows.any()
        np.testing.assert_array_equal(found.rows, expected_rows)
        np.testing.assert_allclose(found.weights, expected, **CLOSE)


def test_token_ids_must_be_a_nonempty_sequence_of_integers():
    with pytest.raises(ValueError, match="periods must contain at least one number; got none"):
        guiding.period(TOKENS, LENGTHS, periods=())
    with pytest.raises(ValueError, match="delimiters must be a sequence of integers; got 1"):
        as_users_have_it(arguments).check_integers("delimiters", 1)


def test_errors_name_the_array_with_a_wrong_shape():
    unchecked = as_users_have_it(relations)
    with pytest.raises(ValueError, match=r"heads .* here \(.*\); got \(1, "):
        unchecked.dependency(TOKENS, TOKENS[:1], LENGTHS)
    with pytest.raises(ValueError, match=r"vectors must have the shape \(B T\)"):
        unchecked.word_similarity(TOKENS[0], LENGTHS, jnp.ones((3, 2)))


@pytest.mark.usefixtures("eight_devices")
def test_tables_are_looked_up_on_a_mesh_with_explicit_axes():
    @jax.jit
    def targets(tokens, vectors, lengths, pmi_table, table):
        return (
            guiding.pmi(tokens, lengths, pmi_table),
            guiding.word_similarity(vectors, lengths, table),
        )

    examples, tables = (TOKENS, VECTORS, LENGTHS), (PMI, TABLE)
    alone = targets(*examples, *tables)
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        placed = jax.device_put(examples, NamedSharding(mesh, jax.P("data")))
        copied = jax.device_put(tables, NamedSharding(mesh, jax.P()))
        together = targets(*placed, *copied)
    assert together[0].weights.sharding.spec[0] == "data"
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)
