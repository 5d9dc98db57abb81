"""`python -m experiments doctor`: what it says about versions, devices, kernels and caches."""

import json

import jax
import pytest

import distattn_jax
from distattn_jax.attention import devices
from distattn_jax.attention.devices import Machine
from experiments.commands import doctor
from tests.train.runs import keep_compiled

AMPERE = Machine("cuda", [8.0], [], (0, 11))


@pytest.fixture(autouse=True)
def _run_here(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.chdir(tmp_path)
    with keep_compiled(tmp_path / "compiled"):
        yield


def test_the_json_names_versions_devices_and_the_implementation_of_every_variant(capsys):
    doctor.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == distattn_jax.__version__
    assert found["packages"]["jax"] == jax.__version__
    assert None not in found["packages"].values()
    assert sum(each["count"] for each in found["devices"]) == jax.local_device_count()
    calls = {(each["variant"], each["dtype"]) for each in found["kernels"]}
    assert len(calls) == 2 * len(doctor.VARIANTS)
    if jax.default_backend() == "cpu":
        assert {each["chosen"] for each in found["kernels"]} == {"xla"}


def test_the_reason_against_a_kernel_is_given_once_with_its_calls(monkeypatch):
    names = ("DotProduct", "DistanceAware")
    monkeypatch.setattr(doctor, "VARIANTS", {name: doctor.VARIANTS[name] for name in names})
    with devices.assumed(AMPERE):
        found = doctor.examine()
    lines = list(doctor.format_report(found))
    (line,) = (line for line in lines if line.startswith("  DotProduct"))
    assert line.split() == ["DotProduct", "cudnn", "xla"]
    (reason,) = (line for line in lines if "capability" in line)
    assert reason.startswith("  pallas: ")
    assert "DistanceAware in bfloat16" in reason


def test_caches_are_measured_and_secrets_stay_out(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setenv("MY_TOKEN", "secret-word")
    (tmp_path / "compiled" / "inner").mkdir(parents=True)
    (tmp_path / "compiled" / "inner" / "program").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(doctor, "VARIANTS", {"DotProduct": doctor.VARIANTS["DotProduct"]})
    text = "\n".join(doctor.format_report(doctor.examine()))
    assert f"{tmp_path / 'compiled'}  1 files, 2.0 MB" in text
    assert f"{tmp_path / 'data'}" in text
    assert "does not exist" in text
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in text
    assert "secret-word" not in text
    jax.config.update("jax_compilation_cache_dir", None)
    assert doctor.list_folders()["compiled programs (JAX_COMPILATION_CACHE_DIR)"]["path"] is None
