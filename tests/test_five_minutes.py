"""The commands of docs/five_minutes.md run as printed in an empty folder, with less training."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from distattn_jax.datasets import nearest
from distattn_jax.tasks import TRAINED
from experiments.__main__ import main

PAGE = (Path(__file__).parent.parent / "docs" / "five_minutes.md").read_text(encoding="utf-8")
FEWER_STEPS = {"--epochs 1": "--steps 1", "--steps 200": "--steps 2"}


def run_script(script, monkeypatch):
    """Run the Python commands of a shell script in this process, and all others in a shell."""
    shell = ""
    for line in script.replace("\\\n", "").splitlines(keepends=True):
        before, python, arguments = line.partition("python -m experiments ")
        shell += before
        if python:
            done = subprocess.run(
                ["bash", "-e", "-c", shell.rstrip("| ")], check=True, stdout=subprocess.PIPE
            )
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(done.stdout)))
            main([*shlex.split(arguments)])
            shell = ""
    assert not shell, f"no Python command follows {shell}"


def test_the_walk_through_makes_two_pages_and_two_predictions(tmp_path, monkeypatch, capsys):
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    for printed, fewer in FEWER_STEPS.items():
        assert script.count(printed) == 1
        script = script.replace(printed, f"{fewer} --mesh.data 1")
    for split, options in nearest.SPLITS.items():
        monkeypatch.setitem(nearest.SPLITS, split, options._replace(size=64))
    (tmp_path / "distattn_jax").mkdir()
    (tmp_path / "distattn_jax" / "trained").symlink_to(TRAINED["nearest"].parent)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run_script(script, monkeypatch)
    printed = capsys.readouterr().out
    (answer,) = re.findall(r"^good\t0\.\d\d", PAGE, re.MULTILINE)  # Later digits may differ.
    assert re.search(rf"^{answer}", printed, re.MULTILINE)
    assert re.search(r"^(praise|complaint)\t", printed, re.MULTILINE)
    for page in ("sentence.html", "my_texts.html"):
        assert "<html" in (tmp_path / page).read_text()
