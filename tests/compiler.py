"""XLA flags and contexts of the tests. Lowering and compilation take most of their time."""

import functools
import importlib.metadata
import itertools

_JAXLIB = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])

# A module that is not split compiles in four fifths of the time of all cores.
FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
# The older emitters of the CPU backend take a third of the time.
if _JAXLIB < (0, 11):
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
    AS_USERS_HAVE_IT: dict = {"xla_cpu_use_fusion_emitters": True}
else:
    FLAGS += " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    AS_USERS_HAVE_IT = {"xla_backend_extra_options": ""}


def share_contexts() -> None:
    """Let JAX lower a hundred programs in one MLIR context.

    JAX makes a context for each program. This takes 6 ms, a third of the time of a small program,
    and the tests compile thousands of these. A JAX without the replaced function runs the tests as
    well, but more slowly.
    """
    from jax._src.interpreters import mlir

    if hasattr(mlir, "make_ir_context"):
        make = functools.lru_cache(maxsize=1)(lambda number, make=mlir.make_ir_context: make())
        programs = itertools.count()
        mlir.make_ir_context = lambda: make(next(programs) // 100)
