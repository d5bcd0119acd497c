"""abuse.py, one after another against one server."""

import pytest

import abuse
from common import Server


@pytest.fixture(scope="module")
def abused():
    with Server(*abuse.OPTIONS) as server:
        yield server, abuse.settle(server)


@pytest.mark.parametrize("act", abuse.ALL, ids=[act.__name__ for act in abuse.ALL])
def test_abuse(abused, act):
    server, files = abused
    abuse.check(server, act, files)
