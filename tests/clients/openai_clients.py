"""The `openai` package as it comes; only that no proxy of the environment comes between."""

from typing import Any

import openai

from tests.system.stack import Stack


def connect(stack: Stack, **options: Any) -> openai.OpenAI:
    """Without retries, so that a test sees each answer."""
    return openai.OpenAI(
        **{"base_url": f"{stack.http}/v1", "api_key": "none", "max_retries": 0} | options,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def connect_async(stack: Stack, **options: Any) -> openai.AsyncOpenAI:
    """The same for use inside an event loop."""
    return connect_async_to(f"{stack.http}", **options)


def connect_async_to(url: str, **options: Any) -> openai.AsyncOpenAI:
    """The same, to a server that is no `Stack`."""
    return openai.AsyncOpenAI(
        **{"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0} | options,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )
