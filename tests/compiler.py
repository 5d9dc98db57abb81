"""XLA flags of the tests. They shorten compilation, which takes most of the time of the tests."""

import importlib.metadata

_JAXLIB = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])

# A module that is not split compiles in four fifths of the time of all cores.
FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if _JAXLIB < (0, 11):  # The older emitters of the CPU backend take a third of the time.
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
AS_USERS_HAVE_IT = {"xla_cpu_use_fusion_emitters": True} if _JAXLIB < (0, 11) else {}
