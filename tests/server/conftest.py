"""Servers that several tests share."""

import collections
import os

import pytest

from common import Server, make_key


@pytest.fixture(scope="session")
def server():
    """Without keys, on loopback."""
    with Server() as s:
        yield s


class Tenants:
    """A server with the keys of two tenants."""

    def __init__(self, folder):
        keys = folder / "keys"
        self.red, self.blue = make_key("red", keys), make_key("blue", keys)
        self.server = Server("--keys", keys, key=self.red)


@pytest.fixture(scope="session")
def tenants(tmp_path_factory):
    made = Tenants(tmp_path_factory.mktemp("keys"))
    with made.server:
        yield made


@pytest.fixture
def user(request):
    """A name that no other test has."""
    return "user-" + request.node.name


counts = collections.Counter()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        counts[report.outcome] += 1


def pytest_sessionfinish():
    """For whoever started this: passed, failed."""
    path = os.environ.get("INFERSCALE_TEST_COUNTS")
    if path:
        with open(path, "w", encoding="utf-8") as out:
            print(counts["passed"], counts["failed"], file=out)
