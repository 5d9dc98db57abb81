"""Texts that a training prints: its length, warnings, and a short table of the results."""

import dataclasses
from pathlib import Path

import pytest

from distattn_jax.train import OptimizerConfig
from distattn_jax.train.loop import choose_evaluate_every
from distattn_jax.train.optimizer import count_warmup_steps
from experiments.commands.train import (
    describe_methods,
    describe_steps,
    group_programs,
    obey_set_options,
)
from experiments.papers.terminal import describe_short_run, summarize_report
from experiments.recipes import load_recipe

OWN_DATA = ("text_files", "guided_texts", "tagging", "parallel_text", "language_model")
REPORT = f"""# mine

| method | parameters | validation F1 (%) | validation loss | test F1 (%) | test loss | seeds |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| majority tag | - | 5.00 | - | 4.50 | - | - |
| distance-aware | 1,234 | 10.25 ± 0.50 | 0.5000 | 8.39 | 0.6000 | 2 |

{describe_short_run(20)}

mine, F1 (%), validation / test:

| seed | distance-aware |
| --- | ---: |
| 0 | 10.25 / 8.39 |

These runs differ in more than their method:

- seeds: 1 (a), 2 (b)

![learning curves](figures/learning_curves.png)
"""


def test_the_summary_of_a_report_is_a_short_aligned_table_with_notes_and_paths():
    assert summarize_report(REPORT, Path("runs/mine")) == (
        "method          validation F1 (%)  test F1 (%)  seeds\n"
        "-----------------------------------------------------\n"
        "majority tag                 5.00         4.50      -\n"
        "distance-aware       10.25 ± 0.50         8.39      2\n"
        "\n"
        "Trained for 20 steps only. A model learns little in less than 200 steps: do not compare "
        "such results.\n"
        "\n"
        "These runs differ in more than their method:\n"
        "\n"
        "- seeds: 1 (a), 2 (b)\n"
        "\n"
        "all tables  runs/mine/report.md\n"
        "figure      runs/mine/figures/learning_curves.png"
    )


FEW_STEPS = "warning: {} steps are few. A model learns little in less than 200."


def test_the_methods_of_a_recipe_are_counted_and_named():
    line = "2 methods, one after another: adapted, vanilla (--methods selects some)"
    assert describe_methods(("adapted", "vanilla")) == line


@pytest.mark.parametrize(
    ("steps", "warmup", "lines"),
    [
        (400, 0, ["400 steps (40 epochs)."]),
        (10, 0, ["10 steps (1 epoch).", FEW_STEPS.format(10)]),
        (400, 40, ["400 steps (40 epochs), 40 of them warm-up."]),
        (
            50,
            60,
            [
                "50 steps (5 epochs).",
                "warning: the warm-up has 60 steps, but the run has only 50: the learning rate "
                "does not reach its peak before the end. Set --optimizer.warmup-steps to at most "
                "5, or --steps to at least 600.",
                FEW_STEPS.format(50),
            ],
        ),
    ],
)
def test_the_length_of_a_run_is_told_with_warnings(steps, warmup, lines):
    optimizer = OptimizerConfig(warmup_steps=warmup)
    assert describe_steps(steps, 10, optimizer).splitlines() == lines


@pytest.mark.parametrize("recipe", OWN_DATA)
def test_recipes_for_own_data_train_enough_steps_with_a_short_warm_up(recipe):
    config = load_recipe(recipe).get_config()
    steps = config.count_steps(per_epoch=1)
    assert steps == 200
    assert count_warmup_steps(config.optimizer, steps) <= 20
    assert config.count_steps(per_epoch=10_000) == 10_000 * config.epochs
    assert dataclasses.replace(config, steps=3).count_steps(per_epoch=1) == 3
    many_steps = count_warmup_steps(config.optimizer, 1_000_000)
    assert many_steps == config.optimizer.warmup_steps


def test_epochs_and_warm_up_on_the_command_line_are_obeyed():
    config = load_recipe("tagging").get_config()
    assert obey_set_options(config, {"seeds"}) == config
    obeyed = obey_set_options(config, {"epochs", "optimizer.warmup_steps"})
    assert obeyed.count_steps(per_epoch=1) == 20
    assert count_warmup_steps(obeyed.optimizer, 20) == 200
    assert obey_set_options(config, {"epochs", "min_steps"}) == config


@pytest.mark.parametrize(
    ("steps", "per_epoch", "every"),
    [
        (20, 100, 5),  # The run is shorter than an epoch.
        (3, 1, 1),
        (20, 1, 1),
        (199, 1, 4),
        (200, 100, 100),  # once an epoch
        (200, 1000, 1000),
        (500, 1, 10),  # at most 50 times
    ],
)
def test_short_runs_are_validated_several_times_but_not_at_every_step(steps, per_epoch, every):
    assert choose_evaluate_every(steps, per_epoch) == every


def test_programs_of_one_kind_are_named_together():
    names = ["training on 12 tokens", "initial parameters", "training on 8 tokens"]
    assert group_programs(names * 2) == "training on 8, 12 tokens; initial parameters"
