"""Modules without the checker of types that the tests put before them."""

import importlib.util


def as_users_have_it(module):
    """The same file, loaded again, with no checker before its own errors."""
    spec = importlib.util.spec_from_file_location(f"plain_{module.__name__}", module.__file__)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    return plain
