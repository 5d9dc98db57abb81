"""Lists of the programs that are compiled for TPUs, one list for each table of the results."""

from experiments.bench.shapes import SHAPES, Shape
from experiments.bench.tpu_programs import OPTIONS, VARIANTS, XLA, Case

MAIN_GENERATIONS = ("v5e", "v6e")
WIDTHS = (64, 128)
LENGTHS = (2048, 32768)
SCHEDULED = ("splash", "dot_product", "distance_aware")
TILE = (512, 512)
TILE_SIZES = (256, 512, 1024)
TRAINING = Shape(batch=64, heads=12, length=512, width=64)
SMALL = Shape(batch=1, heads=2, length=2048, width=64)
LONG_TEXT = Shape(batch=1, heads=8, length=32768, width=64)


def schedule_cases() -> list[Case]:
    """Return the cases whose numbers of bundles (TPU instructions) per tile are compared.

    All cases have the same tile size.
    """
    sizes = SMALL._replace(width=128)
    programs = (*SCHEDULED, *(name for name in VARIANTS if name not in SCHEDULED))
    return [
        Case(program, generation, sizes, TILE)
        for generation in MAIN_GENERATIONS
        for program in programs
    ]


def memory_cases() -> list[Case]:
    """Return the cases whose temporary memory is compared."""
    programs = (*SCHEDULED, "relative_position", "t5", "transformer_xl", "transformer_xl" + XLA)
    return [
        Case(program, generation, sizes, TILE if program == "splash" else None)
        for generation in MAIN_GENERATIONS
        for program in programs
        for sizes in (SHAPES["long"], SHAPES["xlong"])
    ]


def training_cases() -> list[Case]:
    """Return the cases of training steps: a model with the sizes of BERT base on a 2 x 2 mesh."""
    return [Case("training_step", generation, TRAINING, mesh=(2, 2)) for generation in ("v5e",)]


def sequence_cases() -> list[Case]:
    """Return the cases of long texts, on one device and in a ring of devices.

    Half of the length on half of the devices gives each device the same share.
    """
    half = LONG_TEXT._replace(length=LONG_TEXT.length // 2)
    return [
        Case(program, "v5e", sizes, sequence=devices)
        for program in ("dot_product", "distance_aware", "causal")
        for sizes, devices in ((LONG_TEXT, 1), (LONG_TEXT, 8), (half, 4))
    ]


def compilation_cases() -> list[Case]:
    """Return cases of all kernels with several sizes and TPUs, to show that they compile."""
    cases = [
        Case(program, generation, SMALL._replace(length=length, width=width))
        for program in VARIANTS
        for generation in MAIN_GENERATIONS
        for width in WIDTHS
        for length in LENGTHS
    ]
    cases += [Case(program, "v5p", SMALL) for program in VARIANTS]
    mesh_sizes = SMALL._replace(batch=2)
    cases += [Case(program, "v5e", mesh_sizes, mesh=(2, 2)) for program in VARIANTS]
    cases += [
        Case(option, generation, SMALL) for option in OPTIONS for generation in MAIN_GENERATIONS
    ]
    cases += [
        Case("distance_aware", generation, SMALL._replace(width=width))
        for width in (16, 256)
        for generation in MAIN_GENERATIONS
    ]
    return cases


def tile_cases() -> list[Case]:
    """Return cases with different tile sizes. The best sizes are chosen from their results."""
    return [
        Case(program, generation, SMALL._replace(length=4096, width=width), (queries, keys))
        for generation in ("v5e", "v6e", "v5p")
        for program in ("distance_aware", "dot_product")
        for width in WIDTHS
        for queries in TILE_SIZES
        for keys in TILE_SIZES
    ]


GROUPS = {
    "schedule": schedule_cases,
    "memory": memory_cases,
    "training": training_cases,
    "sequence": sequence_cases,
    "compilation": compilation_cases,
    "tiles": tile_cases,
}


def find_case(name: str) -> Case:
    """Return the case with this name, or raise a ValueError."""
    cases = {case.name: case for make_cases in GROUPS.values() for case in make_cases()}
    if name not in cases:
        raise ValueError(f"--case must be the name of a case, such as {next(iter(cases))!r}.")
    return cases[name]
