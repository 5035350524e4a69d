from __future__ import annotations

import pytest

from nsysx.model import Summary
from tests.render import factory


@pytest.fixture(scope="session")
def full() -> Summary:
    return factory.summary()


@pytest.fixture(scope="session")
def bare() -> Summary:
    return factory.bare()


@pytest.fixture(scope="session")
def hostile() -> Summary:
    return factory.hostile()
