"""What both clients share: messages, the last known fleet, own bookings. No I/O. Guarded by a lock, held for moments."""

import array
import collections
import dataclasses
import sys
import threading

import grpc
from kvoracle.v1 import common_pb2, fleet_pb2, progress_pb2, route_pb2

ROUTE = "/kvoracle.v1.RouteService/Route"
RECORD = "/kvoracle.v1.RouteService/RecordProgress"
LIST = "/kvoracle.v1.FleetService/ListWorkers"
MOST_EVENTS = 1024  # in one call
MOST_QUEUED = 16384  # then the oldest are dropped: bookings end by their leases

# Codes that are no answer. Every other one is about the request, and the caller's to see.
_SILENT = {
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND,
}


# Roles that do one phase alone. An aggregated worker does each, and nobody else does both.
_ROLES = {route_pb2.PHASE_PREFILL: common_pb2.ROLE_PREFILL, route_pb2.PHASE_DECODE: common_pb2.ROLE_DECODE}

# Reasons that are the oracle's word all the same: whoever is left would refuse the request too.
_WORDS = b"NO_ELIGIBLE_WORKER", b"QUEUE_FULL", b"QUEUE_TIMEOUT"


@dataclasses.dataclass
class Decision:
    """Where to send a request. It ends with finished, failed or cancelled, exactly once."""

    worker_id: str
    dp_rank: int
    address: str
    decision_id: str = ""  # empty: the oracle knows nothing of it
    matched_tokens: int = 0
    fallback: str = ""  # why the client chose by itself; empty: the oracle chose
    response: route_pb2.RouteResponse | None = None  # the oracle's; of the client's own choice, its targets
    ended: bool = False


def packed(tokens):
    """The little-endian uint32 array of token ids: memory that is one already is not converted."""
    if isinstance(tokens, (bytes, bytearray)):
        if len(tokens) % 4:
            raise ValueError(f"{len(tokens)} bytes are no array of 4-byte tokens")
        return tokens
    try:
        view = memoryview(tokens)
    except TypeError:
        view = memoryview(array.array("I", tokens))
    if view.itemsize != 4 or view.format not in ("I", "i", "L", "l", "<I", "<i") or not view.contiguous:
        view = memoryview(array.array("I", view.tolist()))
    if sys.byteorder == "big":
        swapped = array.array("I", view.tolist())
        swapped.byteswap()
        view = memoryview(swapped)
    return view.cast("B")


def _varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def question(model, tokens, fields):
    """The bytes of a RouteRequest; the array is copied once, into them. A str is text, which nobody has tokenized."""
    if isinstance(tokens, str):
        return route_pb2.RouteRequest(model=model, text=tokens, **fields).SerializeToString()
    memory = packed(tokens)
    head = route_pb2.RouteRequest(model=model, **fields).SerializeToString()
    array_head = b"\x0a" + _varint(len(memory))  # TokenPrompt.token_ids, packed
    return b"".join((head, b"\x1a", _varint(len(array_head) + len(memory)), array_head, memory))  # RouteRequest.tokens


class Core:
    """Fleet, bookings and what is still to be said."""

    def __init__(self):
        self._lock = threading.Lock()
        self._workers = []  # as last listed
        self._booked = collections.Counter()  # by (worker, rank)
        self._turn = 0
        self._events = collections.deque(maxlen=MOST_QUEUED)
        self.dropped = 0  # events that were not said
        self.fallbacks = 0  # decisions of our own

    def learn(self, workers):
        # An empty list is that of an oracle which has just been started: what was known before is better.
        with self._lock:
            self._workers = list(workers) or self._workers

    def decided(self, response):
        t = response.target
        m = response.matched
        d = Decision(t.worker_id, t.dp_rank, t.address, response.decision_id,
                     m.device + m.host + m.disk + m.shared, response=response)
        with self._lock:
            self._booked[t.worker_id, t.dp_rank] += 1
        return d

    def fallback(self, error, model, fields):
        """A choice of our own, or the error where it is the oracle's word on the request."""
        code = error.code()
        if code not in _SILENT or any(word in _details(error) for word in _WORDS):
            raise error
        asked = route_pb2.RouteRequest(model=model, **fields)
        with self._lock:
            targets, prefill = self._targets(asked, asked.phase), None
            if not targets and asked.phase == route_pb2.PHASE_BOTH:  # a fleet where nobody does both
                starts = self._targets(asked, route_pb2.PHASE_PREFILL)
                targets = self._targets(asked, route_pb2.PHASE_DECODE) if starts else []
                prefill = self._least(starts) if targets else None
            if not targets:
                raise error
            t = self._least(targets)
            self._booked[t.worker_id, t.dp_rank] += 1
            self.fallbacks += 1
        response = route_pb2.RouteResponse(target=t, prefill_target=prefill)
        return Decision(t.worker_id, t.dp_rank, t.address, fallback=code.name, response=response)

    def _targets(self, asked, phase):
        """The last known targets that may take a request in a phase."""
        denied, allowed = set(asked.denied_workers), set(asked.allowed_workers)
        roles = {common_pb2.ROLE_UNSPECIFIED, common_pb2.ROLE_AGGREGATED, _ROLES.get(phase)}
        return [
            common_pb2.Target(worker_id=spec.worker_id, dp_rank=r.dp_rank, address=spec.address)
            for w in self._workers if w.state == fleet_pb2.WORKER_STATE_READY
            for spec in (w.spec,)
            if spec.model == asked.model and (not spec.roles or roles & set(spec.roles))
            and spec.worker_id not in denied and (not allowed or spec.worker_id in allowed)
            and all(spec.labels.get(k) == v for k, v in asked.required_labels.items())
            for r in (w.ranks or [fleet_pb2.RankStatus()])
        ]

    def _least(self, targets):
        """The one with the fewest of our own requests; equal ones take turns."""
        self._turn += 1
        at = self._turn % len(targets)
        return min(targets[at:] + targets[:at], key=lambda t: self._booked[t.worker_id, t.dp_rank])

    def tell(self, decision, end=False, **step):
        with self._lock:
            if end and not decision.ended:
                decision.ended = True
                key = decision.worker_id, decision.dp_rank
                self._booked[key] -= 1
                if self._booked[key] <= 0:
                    del self._booked[key]
            if decision.decision_id:
                self.dropped += len(self._events) == MOST_QUEUED
                self._events.append(progress_pb2.ProgressEvent(decision_id=decision.decision_id, **step))

    def take(self):
        """The next events to be said, as a request; None if there are none."""
        with self._lock:
            events = [self._events.popleft() for _ in range(min(len(self._events), MOST_EVENTS))]
        return progress_pb2.RecordProgressRequest(events=events) if events else None

    def put_back(self, request):
        """Events that could not be said. Each step only moves forward, so saying one twice does no harm."""
        with self._lock:
            for e in reversed(request.events):
                if len(self._events) == MOST_QUEUED:
                    self.dropped += 1
                else:
                    self._events.appendleft(e)


def _details(error):
    metadata = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return b"".join(v for k, v in metadata or () if k == "grpc-status-details-bin")


def calls(channel):
    """Route, RecordProgress and ListWorkers of a channel, be it for threads or for asyncio."""
    return (
        channel.unary_unary(ROUTE, None, route_pb2.RouteResponse.FromString),
        channel.unary_unary(
            RECORD, progress_pb2.RecordProgressRequest.SerializeToString, progress_pb2.RecordProgressResponse.FromString),
        channel.unary_unary(LIST, fleet_pb2.ListWorkersRequest.SerializeToString, fleet_pb2.ListWorkersResponse.FromString),
    )


class Steps:
    """What a gateway says of a request. None of these waits for the oracle. Needs core, and _wake, at which it is said."""

    def _tell(self, d, **step):
        self.core.tell(d, **step)
        self._wake.set()

    def dispatched(self, d, worker_id=None, dp_rank=0):
        """It was sent; to another worker than the chosen one, if one is named."""
        target = common_pb2.Target(worker_id=worker_id, dp_rank=dp_rank) if worker_id else None
        self._tell(d, dispatched=progress_pb2.Dispatched(target=target))

    def first_token(self, d, ttft_seconds=0.0):
        self._tell(d, first_token=progress_pb2.FirstToken(ttft_seconds=ttft_seconds))

    def generating(self, d, output_tokens):
        """A sign of life, every some ten seconds: it renews the booking's lease."""
        self._tell(d, generating=progress_pb2.Generating(output_tokens=output_tokens))

    def finished(self, d, output_tokens=0, cached_tokens=None, prompt_tokens=0):
        """It ended well. The counts are the engine's; prompt_tokens is needed where the prompt was text."""
        self._tell(d, end=True, finished=progress_pb2.Finished(
            output_tokens=output_tokens, cached_tokens=cached_tokens, prompt_tokens=prompt_tokens))

    def failed(self, d, reason=""):
        self._tell(d, end=True, failed=progress_pb2.Failed(reason=reason))

    def cancelled(self, d):
        self._tell(d, end=True, cancelled=progress_pb2.Cancelled())
