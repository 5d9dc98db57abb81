"""XLA flags of the tests. They shorten compilation, which takes most of the time of the tests."""

import importlib.metadata

_JAXLIB = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])

# Before jaxlib 0.11 the older emitters of the CPU backend take two thirds of the time.
FLAGS = "--xla_cpu_use_fusion_emitters=false" if _JAXLIB < (0, 11) else ""
AS_USERS_HAVE_IT = {"xla_cpu_use_fusion_emitters": True} if FLAGS else {}
