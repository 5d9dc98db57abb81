"""Guides: named sets of auxiliary losses on the attention of pre-trained models.

| name | loss | input of the loss |
| --- | --- | --- |
| none | no auxiliary loss: ordinary fine-tuning | - |
| mdg | map discrimination guide (MDG; Wang et al. 2022) | received attention |
| pdg | pattern decorrelation guide (PDG; Wang et al. 2022) | received attention |
| ag | attention guiding (AG): MDG and PDG together | received attention |
| first, next, previous, period, delimiter | a pattern of positions (Deshpande 2020) | maps |
| pmi, dependency, word_similarity | a relation between words | maps |

Received attention is the attention that each key receives, summed over the queries. Maps are the
whole attention matrices of all heads.

Every loss is multiplied by a weight, which is a hyperparameter: alpha for MDG, beta for PDG, and
gamma for all other losses.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax import guiding
from distattn_jax.train import Loss, Setting, WeightedLoss

Batch = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class GuideOptions:
    """Options of the auxiliary attention losses (guides) of a run.

    Attributes:
      layers: Indices of the guided layers; None guides all layers.
      single_layer: True if only one layer is guided. Its index is the hyperparameter `layer`.
      scaling: Scaling of the map discrimination guide (MDG) and the pattern decorrelation guide
        (PDG), "mean" or "sum".
      temperature: Temperature of MDG.
      periods: Token ids of periods.
      delimiters: Token ids of separators.
    """

    layers: tuple[int, ...] | None = None
    single_layer: bool = False
    scaling: str = "mean"
    temperature: float = 1.0
    periods: tuple[int, ...] = ()
    delimiters: tuple[int, ...] = ()


class GuideTerm(NamedTuple):
    """Auxiliary loss, and the name of the hyperparameter that is its weight.

    Attributes:
      loss: Function (outputs, batch, options) that returns one loss per example, shape (B,).
      weight: Name of a hyperparameter: alpha, beta or gamma.
    """

    loss: Callable[..., Float[Array, " B"]]
    weight: str


@dataclasses.dataclass(frozen=True)
class Guide:
    """Set of auxiliary losses on the attention. The losses are added to the loss of the task.

    Attributes:
      title: Name of the guide in tables and figures.
      summary: One line about the guide, for --help.
      terms: Dict from the name of a loss to the loss and the name of its weight.
      received: True if the losses need the attention that each key receives, summed over queries.
      maps: True if the losses need whole attention maps. The model must then return the maps.
      columns: Names of columns of the training set that the losses need, besides `tokens`.
      constants: Names of arrays that the losses need. These arrays are the same for every batch.
    """

    title: str
    summary: str
    terms: Mapping[str, GuideTerm] = dataclasses.field(default_factory=dict)
    received: bool = False
    maps: bool = False
    columns: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the hyperparameters that are the weights of the losses."""
        return tuple(term.weight for term in self.terms.values())

    def losses(self, options: GuideOptions) -> dict[str, Loss]:
        """Return a dict from the name of each loss to its function.

        A function has the arguments (outputs, batch) and returns one loss per example, shape (B,),
        which is not multiplied by the weight.
        """
        return {
            name: functools.partial(term.loss, options=options) for name, term in self.terms.items()
        }

    def weigh(
        self, losses: Mapping[str, Loss], setting: Setting, *, single_layer: bool = False
    ) -> dict[str, WeightedLoss]:
        """Return a dict from the name of each loss to the loss function and its weight.

        Args:
          losses: Dict from name to loss function, as returned by the method `losses`.
          setting: Dict from the name of a hyperparameter to its value, which may be a JAX tracer.
            The weights are hyperparameters.
          single_layer: If True, compute the losses only on the layer `setting["layer"]`; the first
            layer is 1.
        """
        return {
            name: WeightedLoss(
                _select_layer(loss, setting["layer"]) if single_layer else loss,
                setting[self.terms[name].weight],
            )
            for name, loss in losses.items()
        }


def _select_layer(loss: Loss, layer: Float[Array, ""]) -> Loss:
    """Return a loss function that applies `loss` to the attention of a single layer.

    `layer` is the number of the layer; the first layer is 1. It is a float, like all
    hyperparameters on the device.
    """

    def loss_of_layer(outputs: Any, batch: Batch) -> Float[Array, " B"]:
        index = jnp.asarray(layer, jnp.int32)[None] - 1
        selected = {
            name: jnp.take(getattr(outputs, name), index, axis=1)
            for name in ("received", "weights")
            if getattr(outputs, name) is not None
        }
        return loss(outputs._replace(**selected), batch)

    return loss_of_layer


def _map_discrimination(outputs: Any, batch: Batch, options: GuideOptions) -> Float[Array, " B"]:
    return guiding.map_discrimination(
        outputs.received,
        batch["tokens_length"],
        layers=options.layers,
        scaling=options.scaling,
        temperature=options.temperature,
    )


def _pattern_decorrelation(outputs: Any, batch: Batch, options: GuideOptions) -> Float[Array, " B"]:
    return guiding.pattern_decorrelation(
        outputs.received, batch["tokens_length"], layers=options.layers, scaling=options.scaling
    )


def _make_pattern_guide(
    title: str,
    summary: str,
    name: str,
    target: Callable[[Batch, GuideOptions], guiding.Target],
    **inputs: Any,
) -> Guide:
    """Return a guide with an auxiliary loss that makes attention maps similar to a target pattern.

    Args:
      title: Name of the guide in tables and figures.
      summary: One line about the guide, for --help.
      name: Name of the loss.
      target: Function of a batch and the options that returns the target pattern.
      **inputs: Fields `columns` and `constants` of the guide: names of the arrays that `target`
        reads from the batch.
    """

    def loss(outputs: Any, batch: Batch, options: GuideOptions) -> Float[Array, " B"]:
        return guiding.pattern_loss(
            outputs.weights, target(batch, options), batch["tokens_length"], layers=options.layers
        )

    return Guide(title, summary, {name: GuideTerm(loss, "gamma")}, maps=True, **inputs)


def _first(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.first_token(batch["tokens"], batch["tokens_length"])


def _next(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.next_token(batch["tokens"], batch["tokens_length"])


def _previous(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.previous_token(batch["tokens"], batch["tokens_length"])


def _period(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.period(batch["tokens"], batch["tokens_length"], periods=options.periods)


def _delimiter(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.delimiter(batch["tokens"], batch["tokens_length"], delimiters=options.delimiters)


def _pmi(batch: Batch, options: GuideOptions) -> guiding.Target:
    table = guiding.PmiTable(batch["pmi_row_of_token"], batch["pmi_values"])
    return guiding.pmi(batch["tokens"], batch["tokens_length"], table)


def _dependency(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.dependency(batch["words"], batch["heads"], batch["tokens_length"])


def _word_similarity(batch: Batch, options: GuideOptions) -> guiding.Target:
    return guiding.word_similarity(batch["vectors"], batch["tokens_length"], batch["word_vectors"])


MDG = GuideTerm(_map_discrimination, "alpha")
PDG = GuideTerm(_pattern_decorrelation, "beta")
GUIDES = {
    "none": Guide("no guide", "ordinary fine-tuning, a baseline"),
    "ag": Guide("AG", "mdg and pdg together", {"mdg": MDG, "pdg": PDG}, received=True),
    "mdg": Guide(
        "MDG",
        "map discrimination: heads attend to different keys (Wang et al. 2022)",
        {"mdg": MDG},
        received=True,
    ),
    "pdg": Guide(
        "PDG",
        "pattern decorrelation: keys are attended to by different heads (Wang et al. 2022)",
        {"pdg": PDG},
        received=True,
    ),
    "first": _make_pattern_guide("[First]", "attention to the first token", "first", _first),
    "next": _make_pattern_guide("[Next]", "attention to the next token", "next", _next),
    "previous": _make_pattern_guide(
        "[Prev]", "attention to the token before", "previous", _previous
    ),
    "period": _make_pattern_guide("[Period]", "attention to periods", "period", _period),
    "delimiter": _make_pattern_guide("[Delim]", "attention to separators", "delimiter", _delimiter),
    "pmi": _make_pattern_guide(
        "[PMI]",
        "attention to words that often occur together",
        "pmi",
        _pmi,
        constants=("pmi_row_of_token", "pmi_values"),
    ),
    "dependency": _make_pattern_guide(
        "[Dependency]",
        "attention along the edges of parse trees",
        "dependency",
        _dependency,
        columns=("words", "heads"),
    ),
    "word_similarity": _make_pattern_guide(
        "[WordSim]",
        "attention to words with similar word vectors",
        "word_similarity",
        _word_similarity,
        columns=("vectors",),
        constants=("word_vectors",),
    ),
}
