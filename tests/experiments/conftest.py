"""Fixtures of the tests of experiments."""

import multiprocessing

import pytest


@pytest.fixture
def no_process_is_left():
    """Check that a test has ended all processes that it started."""
    before = {*multiprocessing.active_children()}
    yield
    assert {*multiprocessing.active_children()} <= before
