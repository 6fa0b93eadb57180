"""The client for threads."""

import threading
import time

import grpc
from kvoracle.v1 import fleet_pb2

from .core import Core, Steps, calls, question


class Client(Steps):
    """Asks an oracle. All methods may be called from any thread. Close it, or use it in a with statement.

    target is "host:port" or a grpc.Channel; deadline is the time in seconds that the oracle has for an answer; the fleet is
    listed every fleet_seconds, and progress is said by a thread of its own.
    """

    def __init__(self, target, deadline=0.02, fleet_seconds=5.0):
        self._own = isinstance(target, str)
        self._channel = grpc.insecure_channel(target) if self._own else target
        self._deadline, self._every = deadline, fleet_seconds
        self.core = Core()
        self._route, self._record, self._list = calls(self._channel)
        self._wake, self._closing, self._saying = threading.Event(), False, threading.Lock()
        self.refresh(timeout=1.0)
        self._thread = threading.Thread(target=self._run, name="kvoracle", daemon=True)
        self._thread.start()

    def route(self, model, prompt, **fields):
        """A Decision for a prompt: token ids, or a str where there is no tokenizer. fields are those of RouteRequest (request_id, session_id, denied_workers, ...)."""
        try:
            timeout = self._deadline + fields.get("max_queue_seconds", 0)
            return self.core.decided(self._route(question(model, prompt, fields), timeout=timeout))
        except grpc.RpcError as error:
            return self.core.fallback(error, model, fields)

    def refresh(self, timeout=1.0):
        """Lists the fleet now. It says whether that worked."""
        try:
            self.core.learn(self._list(fleet_pb2.ListWorkersRequest(), timeout=timeout).workers)
        except grpc.RpcError:
            return False
        return True

    def flush(self, timeout=1.0):
        """Says what is still to be said. It says whether that worked: what another thread has taken is waited for."""
        if not self._saying.acquire(timeout=timeout):
            return False
        try:
            while (request := self.core.take()) is not None:
                try:
                    self._record(request, timeout=timeout)
                except grpc.RpcError:
                    self.core.put_back(request)
                    return False
            return True
        finally:
            self._saying.release()

    def close(self):
        self._closing = True
        self._wake.set()
        self._thread.join()
        self.flush()
        if self._own:
            self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self):
        due = time.monotonic() + self._every  # of the next list, however much there is to be said
        while not self._closing:
            self._wake.wait(max(0, due - time.monotonic()))
            self._wake.clear()
            if not self.flush():
                threading.Event().wait(min(self._every, 0.5))  # it is away: not at once again
            elif time.monotonic() < due:
                continue
            self.refresh()
            due = time.monotonic() + self._every
