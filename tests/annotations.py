"""Faster checks of shapes and types in tests."""

import inspect

import jaxtyping


def skip_functions_without_annotations() -> None:
    """Let the import hook of jaxtyping decorate only functions that have annotations.

    The hook decorates every function, and a function inside a function each time the outer one is
    called. Other functions have nothing to check, and decorating and calling them takes a third of
    the time of tracing a kernel.
    """
    decorate = jaxtyping.jaxtyped

    def decorate_annotated(*, typechecker):
        decorator = decorate(typechecker=typechecker)
        return lambda x: x if inspect.isfunction(x) and not x.__annotations__ else decorator(x)

    jaxtyping.jaxtyped = decorate_annotated
