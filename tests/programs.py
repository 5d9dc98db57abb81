"""Shapes of the arrays in a program."""

from jax.extend.core import jaxprs_in_params


def iterate_shapes(jaxpr):
    """Yield the shapes of all intermediate arrays of a program, including inner programs."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from iterate_shapes(inner)
