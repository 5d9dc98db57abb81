"""`python -m experiments`: what is misspelt is named with what was meant."""

import pytest

from experiments.__main__ import main
from experiments.recipes import list_recipes, load_recipe

RECIPES = {name: load_recipe(name) for name in list_recipes()}
COMMANDS = (
    *("bench", "collect", "evaluate", "list", "predict", "report", "search", "speed", "train"),
)


def left_with(*arguments):
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return exit.value.code


@pytest.fixture(autouse=True)
def _no_compilation_cache(tmp_path, monkeypatch):
    """Where a person has said where compiled programs are kept, commands change nothing."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("trian",), "unknown command 'trian': did you mean 'train'?"),
        (("train", "nearset"), "unknown recipe 'nearset': did you mean 'nearest'?"),
        (("train", "text_files"), "error: the data set text_files needs --data.manual-dir, a f"),
        (("evaluate", "nowhere"), "error: nowhere is not a run: it holds no config.json."),
        (("predict", "nowhere"), "error: nowhere is not a run: it holds no config.json."),
        (("report", "nowhere"), "error: paths must be runs (a run holds a config.json) or folders"),
        (("list", "all"), "usage: python -m experiments list; got 'all' as well."),
    ],
    ids=" ".join,
)
def test_what_a_person_can_mend_is_said_in_a_sentence(arguments, said):
    assert left_with(*arguments).startswith(said)


def test_a_run_of_an_unknown_task_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 2, "task": "claim_raking"}')
    said = "error: unknown task 'claim_raking': did you mean 'claim_ranking'?"
    assert left_with("evaluate", str(tmp_path)) == said


def test_a_command_like_no_other_is_answered_with_all_of_them():
    assert left_with("xyz") == f"unknown command 'xyz': known are: {', '.join(COMMANDS)}."


@pytest.mark.parametrize(("arguments", "code"), [(("--help",), 0), (("-h",), 0), ((), 2)])
def test_help_names_every_command_and_says_what_it_does(capsys, arguments, code):
    assert left_with(*arguments) == code
    usage, _, *lines = capsys.readouterr().out.splitlines()
    assert usage == "usage: python -m experiments COMMAND ..."
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "list"])
def test_every_command_explains_itself(capsys, command):
    assert left_with(command, "--help") == 0
    assert f"python -m experiments {command}" in capsys.readouterr().out


def test_list_prints_every_recipe_with_its_first_line(capsys):
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for line, module in zip(lines, RECIPES.values(), strict=True):
        assert line.endswith(f"  {module.__doc__.splitlines()[0]}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_its_command_device_minutes_and_what_to_expect(name):
    lines = [line.partition(":") for line in RECIPES[name].__doc__.splitlines()]
    told = {key: rest.strip() for key, colon, rest in lines if colon}
    assert all(told.get(key) for key in ("Command", "Device", "Minutes", "Expected"))
    assert f"python -m experiments train {name}" in told["Command"]
