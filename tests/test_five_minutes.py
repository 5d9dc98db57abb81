"""The commands of docs/five_minutes.md run as printed, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "five_minutes.md").read_text(encoding="utf-8")


def test_the_walk_through_makes_two_pages_and_a_prediction(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # Most of the time is compilation.
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(praise|complaint)\t", done.stdout, re.MULTILINE)
    for page in ("sentence.html", "my_texts.html"):
        assert "<html" in (tmp_path / page).read_text()
