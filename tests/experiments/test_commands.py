"""`python -m experiments`: help, recipes, and errors about wrong arguments."""

import pytest

from distattn_jax import __version__
from experiments.__main__ import main
from experiments.recipes import list_recipes, load_recipe

RECIPES = {name: load_recipe(name) for name in list_recipes()}
COMMANDS = (
    *("bench", "collect", "decode", "doctor", "evaluate", "explore", "generate", "heads", "list"),
    *("perplexity", "predict", "report", "reproduce", "save", "search", "speed", "train"),
    *("training_step", "translate"),
)


def exit_code(*arguments):
    """Return the code or the message with which a command exits."""
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return exit.value.code


@pytest.fixture(autouse=True)
def _no_compilation_cache(tmp_path, monkeypatch):
    """Keep compiled programs in a temporary folder, and run there."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "unknown command 'trian': did you mean 'train'?"),
        (("train", "nearset"), "unknown recipe 'nearset': did you mean 'nearest'?"),
        (("train", "text_files"), "error: the data set text_files needs --data.manual-dir, a f"),
        *(
            ((command, "nowhere"), "error: nowhere is not a run: it holds no config.json.")
            for command in ("evaluate", "explore", "predict", "translate")
        ),
        (("report", "nowhere"), "error: paths must be runs (a run holds a config.json) or folders"),
        (("collect", "nowhere"), "error: nothing was collected from nowhere."),
        (("list", "all"), "usage: python -m experiments list; got 'all' as well."),
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_with_one_sentence(arguments, message):
    assert exit_code(*arguments).startswith(message)


def test_an_unknown_task_is_named_with_the_nearest_one(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 3, "task": "claim_raking"}')
    message = f"{tmp_path}/config.json: unknown task 'claim_raking': did you mean 'claim_ranking'?"
    assert exit_code("evaluate", str(tmp_path)) == f"error: {message}"


def test_an_unknown_command_lists_all_commands():
    assert exit_code("xyz") == f"unknown command 'xyz': known are: {', '.join(COMMANDS)}."


@pytest.mark.parametrize(("arguments", "code"), [(("--help",), 0), (("-h",), 0), ((), 2)])
def test_help_lists_every_command_with_its_purpose(capsys, arguments, code):
    assert exit_code(*arguments) == code
    usage, _, *lines, _, hint = capsys.readouterr().out.splitlines()
    assert usage == "usage: python -m experiments [--help | --version] COMMAND ..."
    assert "COMMAND --help" in hint
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert all(len(line.split()) > 3 for line in lines)


def test_the_version_is_that_of_the_package(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"distattn-jax {__version__}\n"


def test_a_folder_of_runs_names_the_runs_inside(tmp_path):
    for method in ("vanilla", "distance_aware"):
        (tmp_path / "nearest" / method).mkdir(parents=True)
        (tmp_path / "nearest" / method / "config.json").write_text("{}")
    runs = "nearest/distance_aware, nearest/vanilla."
    assert exit_code("predict", "nearest").endswith(f"no config.json. Runs inside: {runs}")
    assert exit_code("evaluate", ".").endswith(f"Runs inside: {runs}")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "list"])
def test_every_command_has_help(capsys, command):
    assert exit_code(command, "--help") == 0
    assert f"python -m experiments {command}" in capsys.readouterr().out


def test_list_prints_every_recipe_with_its_first_line(capsys):
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for line, module in zip(lines, RECIPES.values(), strict=True):
        assert line.endswith(f"  {module.__doc__.splitlines()[0]}")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_states_command_device_minutes_and_expected_results(name):
    lines = [line.partition(":") for line in RECIPES[name].__doc__.splitlines()]
    stated = {key: rest.strip() for key, colon, rest in lines if colon}
    assert all(stated.get(key) for key in ("Command", "Device", "Minutes", "Expected"))
    assert f"python -m experiments train {name}" in stated["Command"]
