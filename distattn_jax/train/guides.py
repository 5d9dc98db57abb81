"""The guides of pre-trained models by name: what each asks of the attention, and what it needs.

| name | asks | looks at |
| --- | --- | --- |
| none | nothing: the model as it is fine-tuned by everyone | - |
| mdg, pdg, ag | MDG, PDG, and both (Wang et al. 2022) | received attention |
| first, next, previous, period, delimiter | a pattern of positions (Deshpande 2020) | maps |
| pmi, dependency, word_similarity | a relation of words | maps |

A weight is the name of a number of a member's setting: alpha of MDG, beta of PDG, gamma of all
others.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax import guiding
from distattn_jax.train.losses import Loss, WeightedLoss

Batch = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Aim:
    """What the guides of a run are told beside a batch.

    Attributes:
      layers: those that are guided; None: all.
      one_layer: whether it is one layer, which the setting of a member says.
      scaling: of MDG and PDG, "mean" or "sum".
      temperature: of MDG.
      periods: the tokens that are periods.
      delimiters: the tokens that part sentences.
    """

    layers: tuple[int, ...] | None = None
    one_layer: bool = False
    scaling: str = "mean"
    temperature: float = 1.0
    periods: tuple[int, ...] = ()
    delimiters: tuple[int, ...] = ()


class Term(NamedTuple):
    """One further loss, of (outputs, batch, aim), and the name of the number that weighs it."""

    loss: Callable[[Any, Batch, Aim], Float[Array, " B"]]
    weight: str


@dataclasses.dataclass(frozen=True)
class Guiding:
    """One row of a comparison.

    Attributes:
      title: how tables and figures call it.
      terms: what is added to the loss of the task, by name.
      received: whether it looks at what keys receive.
      maps: whether it looks at whole attention maps, which must then be stored.
      columns: what it needs of the training set, beside tokens.
      constants: what it needs of the whole training set, the same in every batch.
    """

    title: str
    terms: Mapping[str, Term] = dataclasses.field(default_factory=dict)
    received: bool = False
    maps: bool = False
    columns: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the numbers that weigh its terms."""
        return tuple(term.weight for term in self.terms.values())

    def of(self, aim: Aim) -> dict[str, Loss]:
        """Its terms, before they are weighted: each a loss of outputs and batch."""
        return {name: _bound(term.loss, aim) for name, term in self.terms.items()}

    def weighted(
        self, losses: Mapping[str, Loss], setting: Any, *, one_layer: bool = False
    ) -> dict[str, WeightedLoss]:
        """The terms with the weights of a setting, whose numbers may be traced.

        `one_layer`: they are shown the layer of the setting alone.
        """
        return {
            name: WeightedLoss(
                _at_layer(loss, setting.layer) if one_layer else loss,
                getattr(setting, self.terms[name].weight),
            )
            for name, loss in losses.items()
        }


def _bound(loss: Callable[[Any, Batch, Aim], Float[Array, " B"]], aim: Aim) -> Loss:
    return lambda outputs, batch: loss(outputs, batch, aim)


def _at_layer(loss: Loss, layer: Float[Array, ""]) -> Loss:
    def of_layer(outputs: Any, batch: Batch) -> Float[Array, " B"]:
        place = jnp.asarray(layer, jnp.int32)[None]
        shown = {
            name: jnp.take(getattr(outputs, name), place, axis=1)
            for name in ("received", "weights")
            if getattr(outputs, name) is not None
        }
        return loss(outputs._replace(**shown), batch)

    return of_layer


def _map_discrimination(outputs: Any, batch: Batch, aim: Aim) -> Float[Array, " B"]:
    return guiding.map_discrimination(
        outputs.received,
        batch["tokens_length"],
        layers=aim.layers,
        scaling=aim.scaling,
        temperature=aim.temperature,
    )


def _pattern_decorrelation(outputs: Any, batch: Batch, aim: Aim) -> Float[Array, " B"]:
    return guiding.pattern_decorrelation(
        outputs.received, batch["tokens_length"], layers=aim.layers, scaling=aim.scaling
    )


def _towards(
    title: str,
    name: str,
    target: Callable[[Batch, Aim], guiding.Target],
    columns: tuple[str, ...] = (),
    constants: tuple[str, ...] = (),
) -> Guiding:
    """A guide of maps towards a target."""

    def loss(outputs: Any, batch: Batch, aim: Aim) -> Float[Array, " B"]:
        return guiding.pattern_loss(
            outputs.weights, target(batch, aim), batch["tokens_length"], layers=aim.layers
        )

    terms = {name: Term(loss, "gamma")}
    return Guiding(title, terms, maps=True, columns=columns, constants=constants)


def _first(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.first_token(batch["tokens"], batch["tokens_length"])


def _next(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.next_token(batch["tokens"], batch["tokens_length"])


def _previous(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.previous_token(batch["tokens"], batch["tokens_length"])


def _period(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.period(batch["tokens"], batch["tokens_length"], periods=aim.periods)


def _delimiter(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.delimiter(batch["tokens"], batch["tokens_length"], delimiters=aim.delimiters)


def _pmi(batch: Batch, aim: Aim) -> guiding.Target:
    table = guiding.PmiTable(batch["pmi_row_of_token"], batch["pmi_values"])
    return guiding.pmi(batch["tokens"], batch["tokens_length"], table)


def _dependency(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.dependency(batch["words"], batch["heads"], batch["tokens_length"])


def _word_similarity(batch: Batch, aim: Aim) -> guiding.Target:
    return guiding.word_similarity(batch["vectors"], batch["tokens_length"], batch["word_vectors"])


MDG = Term(_map_discrimination, "alpha")
PDG = Term(_pattern_decorrelation, "beta")
GUIDES = {
    "none": Guiding("no guide"),
    "ag": Guiding("AG", {"mdg": MDG, "pdg": PDG}, received=True),
    "mdg": Guiding("MDG", {"mdg": MDG}, received=True),
    "pdg": Guiding("PDG", {"pdg": PDG}, received=True),
    "first": _towards("[First]", "first", _first),
    "next": _towards("[Next]", "next", _next),
    "previous": _towards("[Prev]", "previous", _previous),
    "period": _towards("[Period]", "period", _period),
    "delimiter": _towards("[Delim]", "delimiter", _delimiter),
    "pmi": _towards("[PMI]", "pmi", _pmi, constants=("pmi_row_of_token", "pmi_values")),
    "dependency": _towards("[Dependency]", "dependency", _dependency, columns=("words", "heads")),
    "word_similarity": _towards(
        "[WordSim]",
        "word_similarity",
        _word_similarity,
        columns=("vectors",),
        constants=("word_vectors",),
    ),
}
