"""The order in which images are to be labelled, and memory that is returned."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dca.serve.service import labelling_order, margin_doubt
from serve.serving import client_of, service_of


def test_the_least_certain_image_comes_first():
    probabilities = np.array([[0.9, 0.1, 0.0], [0.4, 0.35, 0.25], [0.6, 0.3, 0.1]])
    features = np.eye(3)
    assert labelling_order(margin_doubt(probabilities), features) == [1, 2, 0]


def test_copies_come_late():
    """A copy of the first image is asked for after a more certain image that looks different."""
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert labelling_order(np.array([1.0, 0.99, 0.2]), features) == [0, 2, 1]


def test_every_image_is_in_the_order_once():
    rng = np.random.default_rng(0)
    units = rng.normal(size=(40, 5))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert sorted(labelling_order(rng.random(40), units)) == list(range(40))
    assert labelling_order(np.zeros(0), np.zeros((0, 5))) == []


def test_freed_memory_is_returned_while_the_server_runs(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    returned = threading.Event()
    monkeypatch.setattr("dca.serve.service.MEMORY_RETURN_SECONDS", 0.01)
    monkeypatch.setattr("dca.serve.service.return_freed_memory", returned.set)
    with client_of(service_of(closed_form)):
        assert returned.wait(10)
    time.sleep(0.1)
    returned.clear()
    assert not returned.wait(0.2), "it ends with the server"
