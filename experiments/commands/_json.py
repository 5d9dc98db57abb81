"""Option --json of commands: one JSON document on standard output, messages on standard error."""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of text, for programs"
    )


@contextlib.contextmanager
def keep_output_for_json(is_json: bool) -> Iterator[None]:
    """Send all prints to standard error if the output of the command is a JSON document."""
    with contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext():
        yield


def print_json(content: Mapping[str, Any]) -> None:
    """Print a JSON document in one line. NaN and infinities, which JSON lacks, become null."""
    print(json.dumps(_to_json(content), allow_nan=False))


def _to_json(content: Any) -> Any:
    """Return a copy of a content that consists of dicts, lists, texts and finite numbers."""
    if isinstance(content, np.ndarray | np.generic):
        content = content.tolist()
    if isinstance(content, Mapping):
        return {str(name): _to_json(value) for name, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_to_json(value) for value in content]
    is_number = isinstance(content, float)
    return None if is_number and not math.isfinite(content) else content
