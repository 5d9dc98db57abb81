"""Frozen dataclasses registered as pytrees."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

Class = TypeVar("Class")


def static(default: Any = dataclasses.MISSING) -> Any:
    """Return a dataclass field that is static metadata of the pytree instead of a child.

    Args:
      default: Default value of the field. If omitted, the field is required.
    """
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def frozen_tree(cls: type[Class]) -> type[Class]:
    """Make a class a frozen dataclass and register it as a pytree.

    Fields declared with `static()` are metadata, all other fields are children. Unflattening does
    not call `__init__`: JAX also unflattens with tracers, axis numbers, shardings and None in place
    of arrays, which shape checks in `__init__` would reject.
    """
    dataclass = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(dataclass)  # type: ignore[arg-type]
    static_names = tuple(field.name for field in fields if field.metadata.get("static"))
    child_names = tuple(field.name for field in fields if field.name not in static_names)

    def flatten(self):
        children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in child_names]
        return children, tuple(getattr(self, name) for name in static_names)

    def unflatten(static_values, children):
        self = object.__new__(dataclass)
        names, values = (*static_names, *child_names), (*static_values, *children)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_with_keys(dataclass, flatten, unflatten)
    return dataclass
