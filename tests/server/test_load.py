"""load.py, for a minute."""

import os

import load
from common import Server


def test_load():
    with Server("--memory", "64M") as server:
        load.run_load(server, float(os.environ.get("INFERSCALE_TEST_LOAD_SECONDS", "60")))
