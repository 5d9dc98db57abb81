"""Options as frozen dataclasses: declaration, command-line flags, conversion to JSON, comparison.

Every option is a dataclass field made by `option`. Nested dataclasses form groups, so that a field
has a dotted name such as `optimizer.learning_rate`. The metadata of a field contains

- `grid`: True if the values of the option form an axis of the hyperparameter grid;
- `changes_result`: False if the option cannot change the result of a run, e.g. an output folder;
- `methods`: names of the methods (attention variants or guides) that use the option, or None if all
  methods use it;
- `advice`: what to use instead of some values that the option refuses;
- `repeatable`: True if a flag that is repeated adds its values to those before;
- `choices`, `descriptions`: allowed values, and a dict from each of them to its description;
- `minimum`, `maximum`: smallest and largest allowed value, or None.

A dataclass may have an attribute `common_options`: dotted names of options that `--help` shows
first.
"""

import argparse
import dataclasses
import math
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from distattn_jax.names import suggest
from distattn_jax.train.flags import make_flag, suggest_option, use_dashes, write_flags

OptionsType = TypeVar("OptionsType")
BOOLEANS = {"true": True, "false": False}


def option(
    default: Any,
    explanation: str,
    *,
    choices: Sequence[str] | Mapping[str, str] = (),
    advice: Mapping[str, str] | None = None,
    grid: bool = False,
    changes_result: bool = True,
    methods: tuple[str, ...] | None = None,
    minimum: float | int | None = None,
    maximum: float | int | None = None,
    repeatable: bool = False,
) -> Any:
    """Declare one option as a dataclass field.

    Args:
      default: Default value; a tuple for an option that accepts several values.
      explanation: Sentence shown by `--help`.
      choices: Allowed values; empty to allow any value. If this is a dict from each value to a
        description, `--help` lists the descriptions.
      advice: Dict from a text that is not in `choices` to a sentence that says what to use instead.
        The error of the command line contains this sentence.
      grid: True if several values form an axis of the hyperparameter grid.
      changes_result: False if the option cannot change the result of a run.
      methods: Names of the methods (attention variants or guides) that use this option. If None,
        all methods use it.
      minimum: Smallest allowed value; None for no limit.
      maximum: Largest allowed value; None for no limit.
      repeatable: True if an option that accepts several values collects those of all its flags:
        `--name 1 --name 2` is then `--name 1 2`. Otherwise, the last flag counts.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "explanation": f"{explanation}; several values form a grid" if grid else explanation,
            "choices": tuple(choices),
            "descriptions": choices if isinstance(choices, Mapping) else {},
            "advice": advice or {},
            "grid": grid,
            "changes_result": changes_result,
            "methods": methods,
            "minimum": minimum,
            "maximum": maximum,
            "repeatable": repeatable,
        },
    )


class Options:
    """Base class of option dataclasses. It has methods that check the values of fields."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if "explanation" not in field.metadata:
                continue  # a group of options
            self._check_type(field)
            choices, values = field.metadata.get("choices"), _as_tuple(getattr(self, field.name))
            for value in values:
                if isinstance(value, float):
                    self.require(math.isfinite(value), field.name, "finite")
                if choices and value not in choices:
                    raise ValueError(
                        f"{field.name} must be one of {', '.join(choices)}; got {value!r}."
                    )
            if field.metadata.get("grid"):
                self.require(len(values) > 0, field.name, "at least one value")
            minimum, maximum = field.metadata.get("minimum"), field.metadata.get("maximum")
            if minimum is not None:
                self.require_at_least(minimum, field.name)
            if maximum is not None:
                within = all(value <= maximum for value in values)
                self.require(within, field.name, f"at most {maximum}")

    def _check_type(self, field: dataclasses.Field) -> None:
        """Raise an error unless the value of an option has the declared type."""
        value_type, several = _value_type(field)
        value = getattr(self, field.name)
        name = f"a tuple of {value_type.__name__}" if several else value_type.__name__
        is_right = isinstance(value, tuple) == several
        self.require(
            is_right and all(_is_a(x, value_type) for x in _as_tuple(value)), field.name, name
        )

    def require(self, condition: bool, name: str, requirement: str) -> None:
        """Raise an error about the field `name` unless the condition holds."""
        if not condition:
            raise ValueError(f"{name} must be {requirement}; got {getattr(self, name)!r}.")

    def require_at_least(self, minimum: float | int, *names: str) -> None:
        """Raise an error unless every value of the named fields is at least `minimum`."""
        for name in names:
            values = _as_tuple(getattr(self, name))
            self.require(all(value >= minimum for value in values), name, f"at least {minimum}")


def iterate_options(options: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield (dotted name, dataclass field, value) for every option, including nested options."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from iterate_options(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def replace_options(options: OptionsType, changes: dict[str, Any]) -> OptionsType:
    """Return a copy of the options in which the options named in `changes` have new values.

    Args:
      options: Dataclass of options to copy.
      changes: Dict from dotted name to new value.
    """
    groups: dict[str, dict[str, Any]] = {}
    direct: dict[str, Any] = {}
    for name, value in changes.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
        else:
            direct[name] = value
    for group, inner in groups.items():
        try:
            direct[group] = replace_options(getattr(options, group), inner)
        except ValueError as error:  # The error of a group names the field without its group.
            raise ValueError(f"{group}.{error}") from None
    return dataclasses.replace(options, **direct)  # type: ignore[type-var]


def parse_options(options: OptionsType, arguments: Sequence[str], *, program: str) -> OptionsType:
    """Return a copy of the options with the values set on the command line.

    `--help` prints every option with its explanation and its value in `options`. The flag of a
    boolean option without a value means true.

    Args:
      options: Dataclass that defines the options and their values before parsing.
      arguments: Command-line arguments, e.g. `["--model.heads", "8"]`. Option names may be
        written with dashes or underscores.
      program: Program name shown by `--help`.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [--option value ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_flags(parser, options)
    known = [name for name, *_ in iterate_options(options)]
    parsed, unknown = parser.parse_known_args([use_dashes(text) for text in arguments])
    if unknown and not unknown[0].startswith("--"):
        parser.error(f"unexpected {unknown[0]!r}: options have the form --name value.")
    if unknown:
        flag = unknown[0].partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        parser.error(f"unknown {flag}: {suggest_option(name, known)}")
    try:
        return replace_options(
            options, {name: _lists_to_tuples(value) for name, value in vars(parsed).items()}
        )
    except ValueError as error:
        parser.error(write_flags(str(error), known))


def _add_flags(parser: argparse.ArgumentParser, options: Any) -> None:
    """Add the flags of all options to a parser, in groups. The common options come first."""
    declared = {name: (field, value) for name, field, value in iterate_options(options)}
    common = [name for name in getattr(options, "common_options", ()) if name in declared]
    groups: dict[str, Any] = {}
    for name in [*common, *(name for name in declared if name not in common)]:
        field, value = declared[name]
        title = _group_title(options, name, is_common=name in common)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        value_type, several = _value_type(field)
        choices, explanation = field.metadata["choices"], field.metadata["explanation"]
        metavar = None if choices else value_type.__name__.upper()
        if choices and several:  # argparse would print all choices twice.
            metavar = field.name.removesuffix("s").upper()
            if field.metadata["descriptions"]:
                _list_choices(parser, metavar, field.metadata["descriptions"])
            else:
                explanation = f"{explanation}; {metavar} is one of {', '.join(choices)}"
        shown = " ".join(map(str, value)) if several else str(value)
        is_switch = value_type is bool and not several
        groups[title].add_argument(
            make_flag(name),
            dest=name,
            action="extend" if field.metadata["repeatable"] else "store",
            type=_make_parser(value_type, field.metadata["advice"]),
            nargs="+" if several else "?" if is_switch else None,
            const=True if is_switch else None,
            choices=choices or None,
            metavar=metavar,
            help=f"{explanation} (now: {shown or 'empty'})".replace("%", "%%"),
        )


def _group_title(options: Any, name: str, *, is_common: bool) -> str:
    """Return the heading in `--help` under which an option is listed."""
    group = name.rpartition(".")[0]
    if is_common or not group:
        return "common options" if is_common else "experiment"
    description = (type(getattr(options, group)).__doc__ or "").strip().rstrip(".")
    return f"{group}: {description}"


def _list_choices(
    parser: argparse.ArgumentParser, metavar: str, descriptions: Mapping[str, str]
) -> None:
    """Add a list of the values of an option and their descriptions to `--help`."""
    column = max(map(len, descriptions)) + 2
    width = shutil.get_terminal_size().columns - 4  # argparse indents and leaves a margin.
    lines = (
        textwrap.fill(f"{name:<{column}}{text}", width, subsequent_indent=" " * column)
        for name, text in descriptions.items()
    )
    parser.add_argument_group(f"{metavar} is one of", "\n".join(lines).replace("%", "%%"))


def list_set_options(arguments: Sequence[str]) -> frozenset[str]:
    """Return the dotted names of the options that a command line sets."""
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    return frozenset(flag.removeprefix("--").replace("-", "_") for flag in flags)


def options_to_dict(options: Any) -> dict[str, Any]:
    """Return a flat dict from dotted name to the value of the option, as a JSON value."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, _, value in iterate_options(options)
    }


def options_from_dict(options: OptionsType, saved: dict[str, Any]) -> OptionsType:
    """Return a copy of `options` with the values of a dictionary that `options_to_dict` made."""
    names = {name for name, *_ in iterate_options(options)}
    for name in saved:
        if name not in names:
            raise ValueError(f"unknown option {name!r}: {suggest(name, names)}")
    return replace_options(
        options, {name: _lists_to_tuples(value) for name, value in saved.items()}
    )


def result_options(options: Any) -> dict[str, Any]:
    """Return a dict from dotted name to JSON value, for options that can change a run's result."""
    names = {
        name for name, field, _ in iterate_options(options) if field.metadata["changes_result"]
    }
    return {name: value for name, value in options_to_dict(options).items() if name in names}


def options_read_by(options: Any, method: str) -> dict[str, Any]:
    """Return a dict from dotted name to value, for the options that `method` uses.

    `method` is an attention variant or a guide.
    """
    return {
        name: value for name, field, value in iterate_options(options) if is_read_by(field, method)
    }


def is_read_by(field: dataclasses.Field, method: str) -> bool:
    """Return True if `method` (attention variant or guide) uses the option declared by `field`."""
    methods = field.metadata["methods"]
    return methods is None or method in methods


def describe_differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for each option whose value changed, sorted by option name."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "nothing"), after.get(name, "nothing")
        if old != new:
            lines.append(f"{name}: {old} before, {new} now")
    return lines


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _lists_to_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _value_type(field: dataclasses.Field) -> tuple[type, bool]:
    """Return the type of an option's values, and True if the option accepts several values."""
    if typing.get_origin(field.type) is tuple:
        return typing.get_args(field.type)[0], True
    return typing.cast(type, field.type), False


def _make_parser(value_type: type, advice: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a function that converts the text of a flag, and refuses the texts in `advice`."""
    if not advice:
        return _parse_boolean if value_type is bool else value_type

    def parse(text: str) -> Any:
        if text in advice:
            raise argparse.ArgumentTypeError(f"got {text!r}. {advice[text]}")
        return value_type(text)

    return parse


def _parse_boolean(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise argparse.ArgumentTypeError(f"must be true or false; got {text!r}")
    return BOOLEANS[text.lower()]


def _is_a(value: Any, value_type: type) -> bool:
    """Return True if `value` has the type `value_type`.

    An int is accepted as a float. A bool is accepted only as a bool.
    """
    accepted = (int, float) if value_type is float else value_type
    return isinstance(value, accepted) and isinstance(value, bool) == (value_type is bool)
