"""The client for asyncio."""

import asyncio
import time

import grpc
from kvoracle.v1 import fleet_pb2

from .core import Core, Steps, calls, question


class AsyncClient(Steps):
    """As Client, on an event loop: `async with AsyncClient("127.0.0.1:7070") as oracle`. Steps are not awaited."""

    def __init__(self, target, deadline=0.02, fleet_seconds=5.0):
        self._target, self._deadline, self._every = target, deadline, fleet_seconds
        self.core = Core()
        self._wake, self._closing, self._saying = asyncio.Event(), False, asyncio.Lock()

    async def __aenter__(self):
        self._own = isinstance(self._target, str)
        self._channel = grpc.aio.insecure_channel(self._target) if self._own else self._target
        self._route, self._record, self._list = calls(self._channel)
        await self.refresh()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        # Not cancelled: before Python 3.12 wait_for may swallow that.
        self._closing = True
        self._wake.set()
        await self._task
        await self.flush()
        if self._own:
            await self._channel.close()

    async def route(self, model, prompt, **fields):
        try:
            timeout = self._deadline + fields.get("max_queue_seconds", 0)
            return self.core.decided(await self._route(question(model, prompt, fields), timeout=timeout))
        except grpc.RpcError as error:
            return self.core.fallback(error, model, fields)

    async def refresh(self, timeout=1.0):
        try:
            self.core.learn((await self._list(fleet_pb2.ListWorkersRequest(), timeout=timeout)).workers)
        except grpc.RpcError:
            return False
        return True

    async def flush(self, timeout=1.0):
        async with self._saying:  # each call in it has a deadline
            while (request := self.core.take()) is not None:
                try:
                    await self._record(request, timeout=timeout)
                except BaseException as error:  # a cancelled call too: what it would have said is said later
                    self.core.put_back(request)
                    if not isinstance(error, grpc.RpcError):
                        raise
                    return False
            return True

    async def _run(self):
        due = time.monotonic() + self._every  # of the next list, however much there is to be said
        while not self._closing:
            try:
                await asyncio.wait_for(self._wake.wait(), max(0, due - time.monotonic()))
            except asyncio.TimeoutError:
                pass
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(min(self._every, 0.5))  # it is away: not at once again
            elif time.monotonic() < due:
                continue
            await self.refresh()
            due = time.monotonic() + self._every
