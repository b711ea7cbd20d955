"""What the tests of a running stack share; each file starts the `stack` it needs."""

import pytest

from tests.system.stack import Client


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        yield connected
        await connected.idle()
