"""A Python worker and a Python gateway against a running kvoracle.

Usage: route.py HOST:PORT, with the stubs generated from proto/ on PYTHONPATH. Exits 0 when every check holds.
"""

import queue
import struct
import sys

import grpc
import xxhash
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kvoracle.v1 import common_pb2, report_blocks_pb2, route_pb2, route_pb2_grpc

MODEL = "e2e/model"
BLOCK_SIZE = 16
SCHEME = "xxh3-64/1337"
HOLDER = "worker-with-blocks"
IDLE = "a-worker-without"  # sorts first, so that choosing by name would be noticed
TIMEOUT = 60  # seconds, for each call; a stream is one

TOKENS = [7 * i + 3 for i in range(3 * BLOCK_SIZE)]  # three full blocks

checks = 0


def check(what, got, want):
    global checks
    checks += 1
    if got != want:
        sys.exit(f"FAILED: {what}: got {got!r}, want {want!r}")


class BlockReporter:
    """One ReportBlocks stream, used in lockstep: send something, read the answer."""

    def __init__(self, stub, worker_id, address):
        self._outbox = queue.Queue()
        self._answers = stub.ReportBlocks(iter(self._outbox.get, None), timeout=TIMEOUT)
        self._send(
            hello=report_blocks_pb2.BlocksHello(
                worker=common_pb2.WorkerSpec(
                    worker_id=worker_id, address=address, model=MODEL, block_size=BLOCK_SIZE
                ),
                incarnation=1,
                next_sequence=1,
                hash_scheme=SCHEME,
                repeats=report_blocks_pb2.REPEAT_MEANING_SET,
            )
        )
        self.accepted = self._receive("accepted")

    def store(self, sequence, tokens):
        """Stores whole blocks from the prompt's start and returns the ack."""
        store = report_blocks_pb2.StoreBlocks(
            root=report_blocks_pb2.Root(),
            tokens=report_blocks_pb2.BlockTokens(token_ids=tokens),
        )
        self._send(
            batch=report_blocks_pb2.BlockBatch(sequence=sequence, ops=[report_blocks_pb2.BlockOp(store=store)])
        )
        return self._receive("ack")

    def close(self):
        self._outbox.put(None)
        for _ in self._answers:
            pass

    def _send(self, **message):
        self._outbox.put(report_blocks_pb2.ReportBlocksRequest(**message))

    def _receive(self, kind):
        answer = next(self._answers)
        check("kind of answer on ReportBlocks", answer.WhichOneof("message"), kind)
        return getattr(answer, kind)


def local_hashes(tokens):
    """Local block hashes, computed without the oracle's help."""
    blocks = [tokens[i : i + BLOCK_SIZE] for i in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE)]
    return [xxhash.xxh3_64_intdigest(struct.pack(f"<{BLOCK_SIZE}I", *block), seed=1337) for block in blocks]


def ask_tokens(tokens, **fields):
    return route_pb2.RouteRequest(model=MODEL, tokens=route_pb2.TokenPrompt(token_ids=tokens), **fields)


def ask_hashes(tokens, **fields):
    prompt = route_pb2.BlockHashPrompt(
        hash_scheme=SCHEME, block_size=BLOCK_SIZE, local_hashes=local_hashes(tokens), token_count=len(tokens)
    )
    return route_pb2.RouteRequest(model=MODEL, block_hashes=prompt, **fields)


def check_answer(what, answer, matched):
    check(f"{what}: worker", answer.target.worker_id, HOLDER)
    check(f"{what}: address", answer.target.address, "127.0.0.1:8001")
    check(f"{what}: matched tokens", answer.matched, common_pb2.TokensByTier(device=matched))
    check(f"{what}: trust in blocks", answer.confidence.blocks, common_pb2.BLOCK_CONFIDENCE_FRESH)


def check_reports(reporter):
    check("resume_from of a new worker", reporter.accepted.resume_from, 1)
    check("snapshot_required of a new worker", reporter.accepted.snapshot_required, False)
    ack = reporter.store(1, TOKENS)
    check("acknowledged batch", ack.applied_sequence, 1)
    check("blocks held", ack.held_blocks, 3)
    check("blocks stored", ack.counters.stored, 3)
    check("refusals", list(ack.refusals), [])


def check_routes(route):
    # matched is what is held; that the engine recomputes the last token shows in the costs, not here.
    check_answer("same tokens", route(ask_tokens(TOKENS, dry_run=True), timeout=TIMEOUT), 3 * BLOCK_SIZE)
    longer = [*TOKENS, 1]
    check_answer("one token more", route(ask_tokens(longer, dry_run=True), timeout=TIMEOUT), 3 * BLOCK_SIZE)
    check_answer("Python's hashes", route(ask_hashes(longer, dry_run=True), timeout=TIMEOUT), 3 * BLOCK_SIZE)
    forked = [*TOKENS[:-1], 0, 1]
    check_answer("fork in the third block", route(ask_hashes(forked, dry_run=True), timeout=TIMEOUT), 2 * BLOCK_SIZE)

    booked = route(ask_tokens(longer, request_id="e2e-1"), timeout=TIMEOUT)
    check_answer("booked", booked, 3 * BLOCK_SIZE)
    check("a booked decision has a name", booked.decision_id != "", True)
    again = route(ask_tokens(longer, request_id="e2e-1"), timeout=TIMEOUT)
    check("same request_id, same decision", (again.decision_id, again.repeated_decision), (booked.decision_id, True))


def check_refusal(route):
    request = ask_tokens(TOKENS, dry_run=True)
    request.model = ""
    try:
        route(request, timeout=TIMEOUT)
    except grpc.RpcError as error:
        refusal = error
    else:
        sys.exit("FAILED: a request without a model was answered")
    check("code of a bad request", refusal.code(), grpc.StatusCode.INVALID_ARGUMENT)

    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    details = rpc_status.from_call(refusal).details
    check("ErrorInfo is there", any(d.Unpack(info) for d in details), True)
    check("ErrorInfo.domain", info.domain, "kvoracle")
    check("ErrorInfo.reason is a stable word", info.reason.replace("_", "").isupper(), True)
    check("BadRequest is there", any(d.Unpack(bad) for d in details), True)
    check("the field is named", ["model" in v.field for v in bad.field_violations], [True])


def main(address):
    with grpc.insecure_channel(address) as channel:
        stub = route_pb2_grpc.RouteServiceStub(channel)
        idle = BlockReporter(stub, IDLE, "127.0.0.1:8000")
        holder = BlockReporter(stub, HOLDER, "127.0.0.1:8001")
        check_reports(holder)
        check_routes(stub.Route)
        check_refusal(stub.Route)
        holder.close()
        idle.close()
    print(f"route.py: {checks} checks hold")


if __name__ == "__main__":
    main(sys.argv[1])
