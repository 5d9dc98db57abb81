"""Faster checks of shapes and types in tests."""

import functools
import inspect

import jaxtyping


def skip_shapes_without_annotations() -> None:
    """Let the import hook of jaxtyping check the shapes only of functions that annotate shapes.

    The hook decorates every function, and a function inside a function each time the outer one is
    called. A function without annotations has nothing to check, and one whose annotations have no
    shapes needs only the type checker, whose calls take a tenth of the time.
    """
    decorate = jaxtyping.jaxtyped

    def decorate_annotated(*, typechecker):
        check_shapes = decorate(typechecker=typechecker)

        def decorator(x):
            if not inspect.isfunction(x) or _has_shapes(x):
                return check_shapes(x)
            return _check_types(x, typechecker) if x.__annotations__ else x

        return decorator

    jaxtyping.jaxtyped = decorate_annotated


def _check_types(function, typechecker):
    """Return the function with checks of types, which jaxtyping can disable."""
    checked = typechecker(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        called = function if jaxtyping.config.jaxtyping_disable else checked
        return called(*args, **kwargs)

    return call


def _has_shapes(function) -> bool:
    """Return True if annotations have shapes, or may have them, such as those that are strings.

    Generators count as well, because a type checker may refuse their annotations.
    """
    hints = function.__annotations__.values()
    return (
        inspect.isgeneratorfunction(function)
        or any("jaxtyping" in repr(hint) for hint in hints)
        or any("'" in repr(hint) for hint in hints if not isinstance(hint, type))
    )
