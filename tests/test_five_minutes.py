"""The commands of docs/five_minutes.md run as printed in an empty folder, with fewer epochs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FEWER_EPOCHS = {"--epochs 0.5": "--epochs 0.05", "--epochs 20": "--epochs 2"}
PAGE = (ROOT / "docs" / "five_minutes.md").read_text(encoding="utf-8")

# The server runs one command after the other, so that they share imports and compiled programs.
SERVER = """
import os, runpy, socket, sys

server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
null = os.open(os.devnull, os.O_RDWR)
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    message, files, _, _ = socket.recv_fds(connection, 65536, maxfds=3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)
    folder, option, module, *arguments = message.decode().split("\\0")
    assert option == "-m"
    os.chdir(folder)
    sys.argv = [module, *arguments]
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        print(exit.code if isinstance(exit.code, str) else "", file=sys.stderr)
    sys.stdout.flush()
    for number in range(3):  # The reader of a pipe waits until all have closed it.
        os.dup2(null, number)
    connection.send(bytes([status]))
    connection.close()
"""
CLIENT = """
import os, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
socket.send_fds(server, ["\\0".join([os.getcwd(), *sys.argv[2:]]).encode()], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""


@pytest.fixture
def environment(tmp_path, compiled):
    """Environment variables in which `python` runs a module in the server."""
    programs, socket = tmp_path / "bin", tmp_path / "socket"
    programs.mkdir()
    (programs / "client.py").write_text(CLIENT)
    (programs / "python").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S -E "{programs}/client.py" "{socket}" "$@"\n'
    )
    (programs / "python").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # Most of the time is compilation.
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(socket)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout.readline() == b"ready\n"
        yield environment
        server.kill()


def test_the_walk_through_makes_two_pages_and_a_prediction(tmp_path, environment):
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    for printed, fewer in FEWER_EPOCHS.items():
        assert script.count(printed) == 1
        script = script.replace(printed, fewer)
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
