"""Shared by the tests: devices, the small checkpoint and its reference runs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = Path(os.environ.get("PASCALINE_TINY", ROOT / "tests" / "fixtures" / "qwen3-vl" / "tiny"))


@pytest.fixture(params=["cpu", "virtual"])
def device(request):
    """The CPU, and the virtual GPU. Where PASCALINE_TEST_DEVICES names others, as cpu,cuda:0, those."""
    names = os.environ.get("PASCALINE_TEST_DEVICES")
    if names is None:
        return request.param
    chosen = names.split(",")
    index = ["cpu", "virtual"].index(request.param)
    if index >= len(chosen):
        pytest.skip("PASCALINE_TEST_DEVICES names fewer devices")
    return chosen[index]


@pytest.fixture(scope="session")
def tiny():
    """The directory of a small checkpoint with random weights."""
    return TINY


def runs():
    """The reference's runs: questions, images, and the tokens that transformers generates."""
    return json.loads((TINY / "cases.json").read_text())["runs"]


@pytest.fixture
def rng():
    return np.random.default_rng(0)
