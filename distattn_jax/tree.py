"""Frozen dataclasses that are pytrees: what holds arrays here is one of these."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

Class = TypeVar("Class")


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field that is part of the program (a function, a number), not an array."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def frozen_tree(cls: type[Class]) -> type[Class]:
    """Makes a class a frozen dataclass and a pytree whose rebuilding runs no checks.

    JAX rebuilds a pytree with whatever takes the place of its arrays: tracers, axis numbers,
    shardings, None. `__init__` would check, and refuse, what is not an array.
    """
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(made)  # type: ignore[arg-type]
    constants = tuple(field.name for field in fields if field.metadata.get("static"))
    arrays = tuple(field.name for field in fields if field.name not in constants)

    def flatten(self):
        children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in arrays]
        return children, tuple(getattr(self, name) for name in constants)

    def unflatten(constant_values, children):
        self = object.__new__(made)
        for name, content in zip(constants + arrays, (*constant_values, *children), strict=True):
            object.__setattr__(self, name, content)
        return self

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made
