"""Folders of a tiny pre-trained model and of a tiny language model, shared by all tests."""

import pytest

from tests.train.pretrained import write_model


@pytest.fixture(scope="session")
def pretrained_folder(made_once):
    return made_once("pretrained", write_model)


@pytest.fixture(scope="session")
def letters_folder(made_once):
    """Folder of the data and the finished run of a tiny language model."""
    from experiments.commands.train import train
    from tests.tasks.letters import make_config

    return made_once("letters", lambda folder: train(make_config(folder)))


@pytest.fixture(scope="session")
def letters_run(letters_folder):
    """Folder of the run of a tiny language model."""
    return letters_folder / "runs" / "letters" / "distance_aware"
