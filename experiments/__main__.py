"""`python -m experiments COMMAND`: train, evaluate, predict, report, list, speed, bench."""

import importlib
import pkgutil
import sys
from types import ModuleType

from distattn_jax.data import DataError
from distattn_jax.train import NonFiniteError, RunError
from distattn_jax.train.flags import nearest
from experiments import commands


def main(arguments: list[str]) -> None:
    """Runs a command; what a person can mend is said in a sentence, without a traceback."""
    known = sorted(found.name for found in pkgutil.iter_modules(commands.__path__))
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m experiments COMMAND ...\n")
        for name in known:
            print(f"  {name:<10}{(module_of(name).__doc__ or '').splitlines()[0]}")
        sys.exit(0 if arguments else 2)
    name, *rest = arguments
    if name not in known:
        raise SystemExit(f"unknown command {name!r}: {nearest(name, known)}")
    try:
        module_of(name).main(rest)
    except (DataError, RunError, NonFiniteError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


def module_of(command: str) -> ModuleType:
    """Its module; those of other commands, and what they need, are not imported."""
    return importlib.import_module(f"experiments.commands.{command}")


if __name__ == "__main__":
    main(sys.argv[1:])
