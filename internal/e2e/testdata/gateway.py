"""A gateway with the Python client, threaded and asyncio, against a running kvoracle that is killed on the way.

Usage: gateway.py HOST:PORT. Prints "kill" when the oracle shall be killed, and waits for a line.
"""

import array
import asyncio
import socket
import sys
import time

import grpc
from kvoracle.v1 import common_pb2, fleet_pb2, fleet_pb2_grpc, route_pb2

from kvoracle_client import AsyncClient, Client
from kvoracle_client.core import Decision, packed, question

TOKENS = list(range(1, 50))
SLOW = 60  # seconds: a busy machine is no reason to fall back
checks = 0


def check(what, got, want):
    global checks
    checks += 1
    if got != want:
        sys.exit(f"FAILED: {what}: got {got!r}, want {want!r}")


def check_packing():
    want = route_pb2.RouteRequest(model="m", tokens=route_pb2.TokenPrompt(token_ids=TOKENS), explain=True)
    memory = array.array("I", TOKENS)
    for form in (TOKENS, tuple(TOKENS), memory, memory.tobytes(), bytearray(memory), memoryview(memory), array.array("q", TOKENS), []):
        got = route_pb2.RouteRequest.FromString(question("m", form, {"explain": True}))
        if form == []:
            check("no tokens", len(got.tokens.token_ids), 0)
        else:
            check(f"tokens as {type(form).__name__}", got, want)
    want = route_pb2.RouteRequest(model="m", text="h\u00e9llo", explain=True)
    check("text", route_pb2.RouteRequest.FromString(question("m", "h\u00e9llo", {"explain": True})), want)
    check("memory is not converted", packed(memory).obj is memory, True)
    check("bytes are not converted", packed(memory.tobytes()).__class__, bytes)
    for bad in (b"123", [-1], [1 << 40], ["x"]):
        try:
            packed(bad)
        except (ValueError, OverflowError, TypeError):
            continue
        sys.exit(f"FAILED: {bad!r} was packed")


def refused(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return None


def check_end(fleet, what):
    """Every booking has ended."""
    workers = fleet.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=SLOW).workers
    check(f"{what}: booked", sum(r.booked_requests for w in workers for r in w.ranks), 0)
    check(f"{what}: decisions", sum(r.decisions for w in workers for r in w.ranks) > 0, True)


def life(oracle):
    d = oracle.route("demo", array.array("I", TOKENS), request_id="sync-1")
    check("sync: chosen by", d.fallback, "")
    check("sync: address", d.address, f"{d.worker_id}:8000")
    oracle.dispatched(d)
    oracle.first_token(d, ttft_seconds=0.1)
    oracle.generating(d, 10)
    oracle.finished(d, output_tokens=20, cached_tokens=0)
    for turn in ("once upon a time " * 20, "once upon a time " * 20 + "and again"):
        d = oracle.route("demo", turn)
        check("sync: text is no token", d.matched_tokens > 0, turn.endswith("again"))
        oracle.first_token(d)
        oracle.finished(d, output_tokens=1)
        check("sync: text, said", oracle.flush(timeout=SLOW), True)
    check("sync: a model nobody serves", refused(lambda: oracle.route("other", TOKENS)), grpc.StatusCode.NOT_FOUND)
    check("sync: no tokens", refused(lambda: oracle.route("demo", [])), grpc.StatusCode.INVALID_ARGUMENT)
    denied = refused(lambda: oracle.route("demo", TOKENS, denied_workers=["a", "b"]))
    check("sync: nobody left", denied, grpc.StatusCode.UNAVAILABLE)
    d = oracle.route("full", TOKENS)
    check("sync: full", refused(lambda: oracle.route("full", TOKENS)), grpc.StatusCode.UNAVAILABLE)
    oracle.finished(d)
    check("sync: said", oracle.flush(timeout=SLOW), True)


async def alife(oracle):
    decisions = await asyncio.gather(*(oracle.route("demo", TOKENS, request_id=f"async-{i}") for i in range(20)))
    check("async: chosen by", {d.fallback for d in decisions}, {""})
    for d in decisions:
        oracle.first_token(d)
        oracle.finished(d, output_tokens=1)
    check("async: said", await oracle.flush(timeout=SLOW), True)


async def check_lists_while_busy(address, fleet):
    """A client that always has something to say hears of new workers all the same."""

    def register(name):
        spec = common_pb2.WorkerSpec(worker_id=name, address=f"{name}:8000", model="late", block_size=16)
        fleet.RegisterWorker(fleet_pb2.RegisterWorkerRequest(spec=spec), timeout=SLOW)

    async def hears(oracle, d, name):
        for _ in range(6000):  # some 30 s
            oracle.generating(d, 1)
            if any(w.spec.worker_id == name for w in oracle.core._workers):
                return True
            await asyncio.sleep(0.005)
        return False

    with Client(address, deadline=SLOW, fleet_seconds=0.5) as oracle:
        d = oracle.route("demo", TOKENS)
        register("c")
        check("sync: hears of a worker while it speaks", await hears(oracle, d, "c"), True)
        oracle.finished(d)
    async with AsyncClient(address, deadline=SLOW, fleet_seconds=0.5) as oracle:
        d = await oracle.route("demo", TOKENS)
        register("d")
        check("async: hears of a worker while it speaks", await hears(oracle, d, "d"), True)
        oracle.finished(d)


async def check_deadline(workers):
    """Of an oracle that is there and says nothing a request waits for as long as it was told, and no longer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, deadline=0.3) as oracle:
            oracle.core.learn(workers)
            began = time.monotonic()
            check("sync, no answer: chosen by", oracle.route("demo", TOKENS).fallback, "DEADLINE_EXCEEDED")
            check("sync, no answer: waited", 0.2 < time.monotonic() - began < SLOW, True)
        async with AsyncClient(address, deadline=0.3) as oracle:
            oracle.core.learn(workers)
            began = time.monotonic()
            check("async, no answer: chosen by", (await oracle.route("demo", TOKENS)).fallback, "DEADLINE_EXCEEDED")
            check("async, no answer: waited", 0.2 < time.monotonic() - began < SLOW, True)


async def taken(oracle):
    """Whether the client's own thread or task took what there was to be said."""
    for _ in range(6000):  # some 30 s
        if not oracle.core._events:
            return True
        await asyncio.sleep(0.005)
    return False


async def check_flush_waits():
    """A flush does not say that all was said while the client itself is still trying to."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        d = Decision("a", 0, "a:8000", decision_id="nobody's")
        with Client(address) as oracle:
            oracle.finished(d)
            check("sync, no answer: taken", await taken(oracle), True)
            check("sync, no answer: said", oracle.flush(timeout=0.1), False)
        async with AsyncClient(address) as oracle:
            oracle.finished(d)
            check("async, no answer: taken", await taken(oracle), True)
            check("async, no answer: said", await oracle.flush(timeout=0.1), False)


async def main(address):
    check_packing()
    channel = grpc.insecure_channel(address)
    fleet = fleet_pb2_grpc.FleetServiceStub(channel)
    for name, more in {
        "a": {"model": "demo", "labels": {"zone": "x"}}, "b": {"model": "demo", "labels": {"zone": "y"}},
        "p": {"model": "demo", "roles": [common_pb2.ROLE_PREFILL]},
        "f": {"model": "full", "max_requests": 1},
        "q": {"model": "split", "roles": [common_pb2.ROLE_PREFILL]}, "r": {"model": "split", "roles": [common_pb2.ROLE_DECODE]},
    }.items():
        spec = common_pb2.WorkerSpec(worker_id=name, address=f"{name}:8000", block_size=16, **more)
        fleet.RegisterWorker(fleet_pb2.RegisterWorkerRequest(spec=spec), timeout=SLOW)

    await check_lists_while_busy(address, fleet)
    await check_flush_waits()
    await check_deadline(fleet.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=SLOW).workers)
    oracle = Client(address, deadline=SLOW)
    check("sync: listed", oracle.refresh(timeout=SLOW), True)
    async with AsyncClient(address, deadline=SLOW) as aoracle:
        check("async: listed", await aoracle.refresh(timeout=SLOW), True)
        life(oracle)
        await alife(aoracle)
        check_end(fleet, "both")

        said = oracle.route("demo", TOKENS)
        print("kill", flush=True)
        sys.stdin.readline()
        oracle.cancelled(said)
        oracle.core.learn([])  # one that has just been started knows nobody
        # The oracle is gone: both go on, and spread what they send.
        chosen = [oracle.route("demo", TOKENS) for _ in range(10)]
        check("sync, alone: chosen by", {d.fallback for d in chosen}, {"UNAVAILABLE"})
        check("sync, alone: spread", sorted(d.worker_id for d in chosen), ["a"] * 5 + ["b"] * 5)
        check("sync, alone: denied", oracle.route("demo", TOKENS, denied_workers=["a"]).worker_id, "b")
        check("sync, alone: label", {oracle.route("demo", TOKENS, required_labels={"zone": "x"}).worker_id for _ in range(4)}, {"a"})
        check("sync, alone: to prefill", oracle.route("demo", TOKENS, phase="PHASE_PREFILL", denied_workers=["a", "b"]).worker_id, "p")
        both = oracle.route("split", TOKENS, phase="PHASE_BOTH")
        check("sync, alone: in two phases", (both.response.prefill_target.address, both.address), ("q:8000", "r:8000"))
        check("sync, alone: nobody does both", refused(lambda: oracle.route("split", TOKENS)), grpc.StatusCode.UNAVAILABLE)
        check("sync, alone: unknown model", refused(lambda: oracle.route("other", TOKENS)), grpc.StatusCode.UNAVAILABLE)
        for d in chosen:
            oracle.finished(d)
        check("sync, alone: said", oracle.flush(timeout=1), False)
        for _ in range(1000):  # the client's own thread may have it, and gives it back
            if kept := [e.decision_id for e in oracle.core._events]:
                break
            await asyncio.sleep(0.05)
        check("sync, alone: kept", kept, [said.decision_id])
        chosen = [await aoracle.route("demo", TOKENS) for _ in range(10)]
        check("async, alone: chosen by", {d.fallback for d in chosen}, {"UNAVAILABLE"})
        check("async, alone: spread", sorted(d.worker_id for d in chosen), ["a"] * 5 + ["b"] * 5)
        for d in chosen:
            aoracle.cancelled(d)
    oracle.close()
    channel.close()
    print(f"gateway.py: {checks} checks hold")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
