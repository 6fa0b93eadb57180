"""A Python gateway's side of kvoracle: ask which worker should serve a prompt, and say how the request went.

A gateway never fails because the oracle did: where there is no answer in time (20 ms by default), the worker with the fewest
own requests among the last known fleet is taken. `Client` is for threads, `AsyncClient` for asyncio.

    with Client("127.0.0.1:7070") as oracle:
        d = oracle.route("my-model", tokens)       # array('I'), numpy uint32 or bytes are sent as they lie in memory
        ...                                        # forward the request to d.address
        oracle.first_token(d, ttft_seconds=0.2)
        oracle.finished(d, output_tokens=42, cached_tokens=128)

A prompt that nobody has tokenized may be a str: it is matched with text that was sent before, not with what engines report.

A request that is wrong, or that no worker can take, raises the grpc.RpcError that the oracle answered.
"""

from .aio import AsyncClient
from .core import Decision
from .sync import Client

__all__ = ["AsyncClient", "Client", "Decision"]
