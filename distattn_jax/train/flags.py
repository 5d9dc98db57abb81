"""Configurations as dataclasses: from the command line, to JSON and back, and how two differ."""

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

Configuration = TypeVar("Configuration")
TRUE_FALSE = {"true": True, "false": False}


def option(default: Any, explanation: str, *, choices: tuple[str, ...] = ()) -> Any:
    """A field with the sentence that `--help` shows; `choices`: the only values it may have."""
    return dataclasses.field(
        default=default, metadata={"explanation": explanation, "choices": choices}
    )


class Checked:
    """A frozen dataclass of options that checks itself: choices here, the rest in subclasses."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            choices, given = field.metadata.get("choices"), getattr(self, field.name)
            for value in given if isinstance(given, tuple) else (given,):
                if choices and value not in choices:
                    raise ValueError(
                        f"{field.name} must be one of {', '.join(choices)}; got {value!r}."
                    )

    def require(self, holds: bool, name: str, wanted: str) -> None:
        """Raises an error about the field `name` unless the condition holds."""
        if not holds:
            raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)!r}.")

    def at_least(self, least: float | int, *names: str) -> None:
        """Each of these fields, or each of its values, is at least this."""
        for name in names:
            given = getattr(self, name)
            values = given if isinstance(given, tuple) else (given,)
            self.require(all(value >= least for value in values), name, f"at least {least}")


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Every field that is not itself a configuration: its dotted name, the field, its value."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def replace(config: Configuration, changes: dict[str, Any]) -> Configuration:
    """The configuration with fields changed, each given by its dotted name."""
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
            direct[group] = replace(getattr(config, group), inner)
        except ValueError as error:  # say which group the field belongs to
            raise ValueError(f"{group}.{error}") from None
    return dataclasses.replace(config, **direct)  # type: ignore[type-var]


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the one most like it, or all of them."""
    known = sorted(names)
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {alike[0]!r}?" if alike else f"known are: {', '.join(known)}."


def parse(config: Configuration, arguments: Sequence[str], *, program: str) -> Configuration:
    """The configuration with what the command line sets; `--help` prints every field.

    Args:
      config: gives the fields, their explanations, and the values of those not set.
      arguments: e.g. `["--model.heads", "8"]`; dashes in names may stand for underscores.
      program: what `--help` calls the program.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [--field value ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = {"": parser.add_argument_group("the experiment")}
    for name, field, value in leaves(config):
        group, _, _ = name.rpartition(".")
        if group not in groups:
            told = (type(getattr(config, group)).__doc__ or "").strip().rstrip(".")
            groups[group] = parser.add_argument_group(f"{group}: {told}")
        kind, many = _type_of(field)
        shown = " ".join(map(str, value)) if many else value
        groups[group].add_argument(
            f"--{name}",
            dest=name,
            type=_truth if kind is bool else kind,
            nargs="+" if many else None,
            choices=field.metadata.get("choices") or None,
            metavar=None if field.metadata.get("choices") else kind.__name__.upper(),
            help=f"{field.metadata['explanation']} (now: {shown!s})".replace("%", "%%"),
        )
    spelled = [_underscored(argument) for argument in arguments]
    given, unknown = parser.parse_known_args(spelled)
    if unknown:
        name = unknown[0].partition("=")[0].removeprefix("--")
        parser.error(f"unknown {unknown[0]!r}: {nearest(name, [n for n, *_ in leaves(config)])}")
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(given).items()
    }
    try:
        return replace(config, changes)
    except ValueError as error:
        parser.error(str(error))


def named(arguments: Sequence[str]) -> frozenset[str]:
    """The dotted names of the fields that a command line sets."""
    flags = (_underscored(argument) for argument in arguments if argument.startswith("--"))
    return frozenset(flag.partition("=")[0].removeprefix("--") for flag in flags)


def to_dict(config: Any) -> dict[str, Any]:
    """What JSON can hold: tuples as lists."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, _, value in leaves(config)
    }


def from_dict(config: Configuration, saved: dict[str, Any]) -> Configuration:
    """The configuration that `to_dict` gave; `config` says of which class."""
    names = {name for name, *_ in leaves(config)}
    for name in saved:
        if name not in names:
            raise ValueError(f"unknown field {name!r}: {nearest(name, names)}")
    return replace(
        config,
        {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()},
    )


def differences(
    one: dict[str, Any], other: dict[str, Any], *, ignoring: tuple[str, ...] = ()
) -> list[str]:
    """A line for each field that differs, those whose names begin with `ignoring` left out."""
    lines = []
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name, "nothing"), other.get(name, "nothing")
        if before != after and not name.startswith(ignoring or "\0"):
            lines.append(f"{name}: {before} before, {after} now")
    return lines


def _type_of(field: dataclasses.Field) -> tuple[type, bool]:
    """The type of one value, and whether the field holds several."""
    if typing.get_origin(field.type) is tuple:
        return typing.get_args(field.type)[0], True
    return typing.cast(type, field.type), False


def _truth(text: str) -> bool:
    if text.lower() not in TRUE_FALSE:
        raise argparse.ArgumentTypeError(f"must be true or false; got {text!r}")
    return TRUE_FALSE[text.lower()]


def _underscored(argument: str) -> str:
    """`--model.head-features=8` as the fields are spelled; what is not a name stays."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
