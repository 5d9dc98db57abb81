"""Parts that the reports on papers share: data, seeds, provenance, figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath
from matplotlib.figure import Figure

from distattn_jax import plot
from experiments.papers import stored_results
from experiments.papers.comparison_tables import seeds
from experiments.papers.formatting import NOT_RUN, NOTHING, markdown, spelled
from experiments.searched import SEARCHED

Picture = tuple[str, str, Callable[[], Figure]]  # name of its file, caption, what draws it

DOTS_PER_INCH = 120


def data(
    kept: Mapping[str, Any], shown: Mapping[str, str], paper: Mapping[str, Sequence[str]]
) -> str:
    """Rows, classes and lengths, ours / the paper's; then what the builders said.

    Args:
      kept: experiment -> its results, or None.
      shown: experiment -> how its data set is called in print.
      paper: experiment -> the five figures of the paper.
    """
    header = ["data set", "train", "validation", "test", "classes", "tokens of an example"]
    rows, said = [], []
    for name, title in shown.items():
        ours = [NOTHING] * 5
        content = kept[name]
        if content is not None:
            about = content["data"]
            counts = (f"{about['rows'][split]:,}" for split in ("train", "validation", "test"))
            classes = str(about["classes"] or NOTHING)  # a ranking has none
            ours = [*counts, classes, f"{about['average_length']:.1f}"]
            said += [f"- {title}: {'; '.join(about['said'])}."]
        theirs = paper.get(name, (NOTHING,) * 5)
        rows.append([title, *(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True))])
    return "\n".join(["Ours / the paper's.", "", markdown(header, rows), "", *said]).rstrip()


def every_seed(kept: Mapping[str, Any]) -> list[str]:
    """The criterion of each seed of each experiment."""
    parts = []
    for name, content in kept.items():
        if content is not None:
            results = stored_results.results_of(content, tuple(content["runs"]))
            criterion = spelled(results[0]["criterion"])
            parts += [f"{name}, {criterion}, validation / test:", seeds(results)]
    return parts


def provenance(
    kept: Mapping[str, Any],
    folder: stored_results.AnyPath,
    *,
    before: Sequence[str] = (SEARCHED,),
    beside: str = "with other runs on the device",
) -> str:
    """Device, versions, commit and minutes of all runs.

    Args:
      kept: experiment -> its results, or None.
      folder: of the results.
      before: how the names of the searches end that came before.
      beside: what else was on the device.
    """
    found = [stored_results.read(name + ending, folder) for ending in before for name in kept]
    rows = []
    for content in filter(None, [*found, *kept.values()]):
        for method, run in content["runs"].items():
            where, packages = run["environment"], run["environment"]["packages"]
            steps, minutes = run["result"]["steps"], run["seconds"] / 60
            name = f"{content['experiment']}/{method}"
            rate = steps / run["seconds"]
            pace = f"{rate:.0f}" if rate >= 0.5 else f"{rate:.1g}"
            models = str(len(run["result"]["members"]))
            versions = f"jax {packages['jax']}, flax {packages['flax']}"
            commit, *changed = (where["commit"] or NOTHING).split("-")
            commit = "-".join([commit[:10], *changed])
            row = [name, where["device"], versions, commit, models, str(steps), pace]
            rows.append([*row, f"{minutes:.1f}"])
    header = ["run", "device", "versions", "commit", "models", "steps", "steps/s", "minutes"]
    note = f"Steps/s and minutes count compilation and validation, {beside}."
    return "\n\n".join([note, markdown(header, rows)]) if rows else NOT_RUN


def draw(pictures: Iterable[Picture], folder: stored_results.AnyPath) -> None:
    """Draws into `folder/figures`."""
    for name, _, figure in pictures:
        plot.save(figure(), epath.Path(folder) / "figures" / f"{name}.png", dpi=DOTS_PER_INCH)


def named(pictures: Iterable[Picture], folder: stored_results.AnyPath) -> dict[str, str]:
    """What there is to draw: caption -> path, as seen from beside the folder."""
    place = f"{epath.Path(folder).name}/figures"
    return {caption: f"{place}/{name}.png" for name, caption, _ in pictures}
