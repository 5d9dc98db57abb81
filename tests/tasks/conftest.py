"""Folder of a tiny pre-trained model, shared by all tests of fine-tuning."""

import pytest

from tests.train.pretrained import write_model


@pytest.fixture(scope="session")
def pretrained_folder(made_once):
    return made_once("pretrained", write_model)
