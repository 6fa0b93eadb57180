"""The real event publisher and load publisher of SGLang, and SMG's real gRPC relay behind them, moved by a test.

Needs no GPU: of SGLang only the modules about events and load are loaded, from the directory in argv[1]; what its packages
import at their beginning (torch, numpy) is not. Reads commands as JSON lines on stdin, answers each with a JSON line on stdout.
"""

import asyncio
import json
import os
import sys
import threading
import time
import types

import grpc
import zmq

ROOT = sys.argv[1]
for package in (
    "sglang",
    "sglang.srt",
    "sglang.srt.arg_groups",
    "sglang.srt.disaggregation",
    "sglang.srt.managers",
    "sglang.srt.managers.scheduler_components",
    "sglang.srt.utils",
):
    module = types.ModuleType(package)
    module.__path__ = [os.path.join(ROOT, *package.split("."))]
    sys.modules[package] = module

from sglang.srt.disaggregation import kv_events  # noqa: E402
from sglang.srt.managers.scheduler_components import load_publisher  # noqa: E402
from smg_grpc_proto import sglang_scheduler_pb2 as scheduler  # noqa: E402
from smg_grpc_proto import sglang_scheduler_pb2_grpc as scheduler_grpc  # noqa: E402
from smg_grpc_servicer.kv_relay import Engine, rank_sources, relay  # noqa: E402
from smg_grpc_servicer.load_record import engine_load_from  # noqa: E402

# One scheduler, of one rank: what the engine would have been started with.
alone = types.SimpleNamespace(
    pp_rank=0, attn_tp_rank=0, attn_cp_rank=0, attn_dp_size=1, attn_dp_rank=0, dp_rank=0, num_dp_ranks=1
)
kv_events.get_parallel = lambda: alone
load_publisher.get_parallel = lambda: alone

publishers = {}
loads = {}


def retry(make):
    """libzmq gives an address back some time after its socket was closed."""
    until = time.monotonic() + 60
    while True:
        try:
            return make()
        except zmq.ZMQError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def sglang(name, endpoint, replay=None, bind=True):
    config = json.dumps(
        {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay, "bind": bind, "topic": "kv"}
    )
    p = retry(lambda: kv_events.EventPublisherFactory.create(config))
    publishers[name] = p
    return {"endpoint": p._local_pub_endpoint or endpoint, "replay": p._local_replay_endpoint or ""}


def load_socket(name, endpoint, port):
    config = json.dumps({"publisher": "zmq", "endpoint": endpoint})
    p = load_publisher.SchedulerLoadPublisher(
        kv_events_config=config, load_publish_endpoint=f"tcp://*:{port}"
    )
    if not p.enable:
        raise RuntimeError(f"the load publisher does not come up at {port}")
    loads[name] = p
    return {}


def load(name, running, waiting):
    snapshot = types.SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_used_tokens=40,
        max_total_num_tokens=400,
        num_waiting_uncached_tokens=7,
        num_total_tokens=47,
        max_running_requests=64,
        total_prefill_uncached_tokens=0,
        total_prefill_busy_us=0,
    )
    loads[name].publish_load_stat(lambda: snapshot, force=True)
    return {}


def publish(name, events):
    made = []
    for e in events:
        kind = e.pop("type")
        if kind == "BlockStored":
            e.setdefault("lora_id", None)
            e["medium"] = kv_events.StorageMedium.GPU
        made.append(getattr(kv_events, kind)(**e))
    publishers[name].publish(kv_events.EventBatch(ts=time.time(), events=made))
    return {}


def close(name):
    publishers.pop(name).shutdown()
    return {}


def current():
    return scheduler.SchedulerLoad(
        num_running_reqs=3, num_waiting_reqs=2, token_usage=0.25, num_used_tokens=100, max_total_num_tokens=400
    )


class Servicer(scheduler_grpc.SglangSchedulerServicer):
    """The relay as SGLang's servicer calls it, and answers that the engine would give."""

    def __init__(self, endpoint, replay):
        self.sources = rank_sources(types.SimpleNamespace(endpoint=endpoint, replay_endpoint=replay), [0])

    async def SubscribeKvEvents(self, request, context):
        source = lambda rank: engine_load_from(current(), queued_token_work=True)  # noqa: E731
        async for batch in relay(
            self.sources, Engine.SGLANG, request.start_sequence_number, context, topic="kv", load_source=source
        ):
            yield batch

    async def GetServerInfo(self, request, context):
        r = scheduler.GetServerInfoResponse(server_type="grpc")
        r.server_args.update({"page_size": 4, "dp_size": 1, "max_running_requests": 64})
        r.start_time.FromSeconds(int(STARTED))
        return r

    async def GetModelInfo(self, request, context):
        return scheduler.GetModelInfoResponse(model_path="/models/m", served_model_name="m")

    async def GetLoads(self, request, context):
        return scheduler.GetLoadsResponse(dp_rank_count=1, loads=[current()])


STARTED = time.time()


def serve(endpoint, replay):
    bound = []
    ready = threading.Event()

    async def main():
        server = grpc.aio.server()
        scheduler_grpc.add_SglangSchedulerServicer_to_server(Servicer(endpoint, replay), server)
        bound.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        ready.set()
        await server.wait_for_termination()

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
    if not ready.wait(60):
        raise RuntimeError("the servicer does not come up")
    return {"endpoint": f"127.0.0.1:{bound[0]}"}


OPERATIONS = {
    "sglang": sglang,
    "load_socket": load_socket,
    "load": load,
    "publish": publish,
    "close": close,
    "serve": serve,
}

for line in sys.stdin:
    command = json.loads(line)
    operation = OPERATIONS[command.pop("op")]
    try:
        answer = operation(**command)
    except Exception as error:  # noqa: BLE001 - the test says what it wanted
        answer = {"error": repr(error)}
    print(json.dumps(answer), flush=True)
os._exit(0)
