"""A gateway with conversations, in front of real engines behind a running kvoracle and its bridge.

Usage: turns.py ORACLE BRIDGE_OPS STATE PHASE NAME=HTTP=REPLAY...
PHASE is `turns N`, `burst N`, `reset`, `settle` or `gone NAME`. STATE is a file that carries the conversations from phase to phase.

Each request goes to the worker that Route names. What Route says is cached there must equal, to the token, what the engine
then says it took from its cache. Exits 0 when every check holds.
"""

import concurrent.futures
import json
import random
import re
import struct
import sys
import time
import urllib.request

import grpc
import zmq

from kvoracle.v1 import common_pb2, fleet_pb2, fleet_pb2_grpc, progress_pb2, route_pb2, route_pb2_grpc

MODEL = "tiny"
BLOCK = 32  # the least that CPU attention takes
VOCABULARY = range(10, 500)
LONGEST = 420  # of a prompt; the model takes 512
OUTPUT = 8
TIMEOUT = 120  # seconds, for anything: the machine may be busy
END = b"\xff" * 8


class Engine:
    """One engine: its HTTP address, and its replay socket, by which it says how much it has published."""

    def __init__(self, text, bridge):
        self.name, self.http, self.replay = text.split("=")
        self._bridge = bridge

    def post(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data=data, method="POST", headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def complete(self, prompt):
        """Returns the output's tokens and how many of the prompt's came from the cache."""
        answer = self.post(
            "/v1/completions",
            {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "return_token_ids": True},
        )
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return answer["choices"][0]["token_ids"], cached

    def published(self):
        """The sequence of the newest batch; -1 before the first."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.replay)
            # The publisher answers between sends, and may have had one to make when it was asked: the third answer is
            # behind whatever was due at the first question.
            newest = -1
            for _ in range(3):
                socket.send_multipart([b"", struct.pack(">Q", max(newest, 0))])
                while True:
                    if not socket.poll(TIMEOUT * 1000):
                        sys.exit(f"FAILED: {self.name} does not answer on its replay socket")
                    *_, sequence, payload = socket.recv_multipart()
                    if sequence == END:
                        break
                    newest = max(newest, struct.unpack(">Q", sequence)[0])
            return newest

    def settle(self):
        """Waits until the oracle has acknowledged everything that the engine has published."""
        newest = self.published()
        wait(f"{self.name}: sequence {newest} at the oracle", lambda: self._told(newest))

    def _told(self, newest):
        numbers = self._bridge.numbers(self.name)
        return numbers["next_batch"] == newest + 1 and numbers["outbox_bytes"] == 0 and numbers["up"] == 1


class Bridge:
    def __init__(self, address):
        self._url = f"http://{address}/metrics"

    def numbers(self, worker):
        with urllib.request.urlopen(self._url, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        pattern = rf'^kvoracle_bridge_(\w+)\{{rank="0",worker="{worker}"\}} (\S+)$'
        found = {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}
        return {"next_batch": -2, "outbox_bytes": -1, "up": 0} | found


def wait(what, holds):
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"FAILED: after {TIMEOUT} s not yet: {what}")
        time.sleep(0.02)


class Gateway:
    def __init__(self, channel, engines, state):
        self.stub, self.fleet = route_pb2_grpc.RouteServiceStub(channel), fleet_pb2_grpc.FleetServiceStub(channel)
        self.engines = {e.name: e for e in engines}
        self.state = state
        self.random = random.Random(f"{state['seed']}/{state['phases']}")
        self.checks = self.hits = self.evicted = 0

    def fresh(self):
        """A conversation's beginning: half of them share a system prompt."""
        shared = self.state["system"] if self.random.random() < 0.5 else []
        return {"tokens": shared + self.draw(self.random.randint(20, 80)), "worker": None, "full": 0}

    def draw(self, n):
        return [self.random.choice(VOCABULARY) for _ in range(n)]

    def route(self, tokens, **fields):
        request = route_pb2.RouteRequest(model=MODEL, tokens=route_pb2.TokenPrompt(token_ids=tokens), **fields)
        return self.stub.Route(request, timeout=TIMEOUT)

    def next_prompt(self, c):
        if c is None or len(c["tokens"]) + 60 > LONGEST:
            return self.fresh()
        c["tokens"] = c["tokens"] + self.draw(self.random.randint(5, 50))
        return c

    def turn(self, i):
        """One request of conversation i, with the check."""
        c = self.state["conversations"][i] = self.next_prompt(self.state["conversations"][i])
        prompt = c["tokens"]
        answer = self.route(prompt)
        engine = self.engines[answer.target.worker_id]
        output, cached = engine.complete(prompt)
        self.done(answer, cached)
        # An engine computes at least the last token, so a whole prompt is never taken from the cache.
        said = min(answer.matched.device, (len(prompt) - 1) // BLOCK * BLOCK)
        if said != cached:
            sys.exit(f"FAILED: {engine.name}: {len(prompt)} tokens: the oracle says {said} are cached, the engine took {cached}")
        self.checks += 1
        self.hits += cached > 0
        self.evicted += c["worker"] == engine.name and said < c["full"]
        c["tokens"], c["worker"] = prompt + output, engine.name
        c["full"] = (len(c["tokens"]) - 1) // BLOCK * BLOCK
        engine.settle()

    def done(self, answer, cached):
        event = progress_pb2.ProgressEvent(
            decision_id=answer.decision_id, finished=progress_pb2.Finished(output_tokens=OUTPUT, cached_tokens=cached)
        )
        self.stub.RecordProgress(progress_pb2.RecordProgressRequest(events=[event]), timeout=TIMEOUT)

    def known(self):
        """Whether the oracle knows what all engines hold. One that has been started a moment ago does not yet."""
        workers = self.fleet.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=TIMEOUT).workers
        fresh = {w.spec.worker_id for w in workers if {r.confidence.blocks for r in w.ranks} == {common_pb2.BLOCK_CONFIDENCE_FRESH}}
        return fresh == self.engines.keys()

    def turns(self, n):
        wait("the oracle knows what all engines hold", self.known)
        for _ in range(n):
            self.turn(self.random.randrange(len(self.state["conversations"])))

    def burst(self, n):
        """Many at once, so that engines queue, preempt and compute a prefix twice. Checked afterwards, by the next turns."""
        jobs = []
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            for i in range(n):
                c = self.fresh() if i % 2 else {"tokens": self.state["system"] + self.draw(3 + i), "worker": None, "full": 0}
                answer = self.route(c["tokens"])
                jobs.append((answer, pool.submit(self.engines[answer.target.worker_id].complete, c["tokens"])))
            for answer, job in jobs:
                self.done(answer, job.result()[1])
        for e in self.engines.values():
            e.settle()

    def reset(self):
        """Empties the caches. An engine says so with its next step only, so it is given one."""
        for e in self.engines.values():
            e.post("/reset_prefix_cache")
            e.complete(self.draw(BLOCK + 1))
            e.settle()
        self.nothing_is_cached()

    def nothing_is_cached(self, *names):
        for c in self.state["conversations"]:
            if c is None:
                continue
            answer = self.route(c["tokens"], dry_run=True, explain=True)
            held = {x.target.worker_id: x.matched.device for x in answer.candidates if not names or x.target.worker_id in names}
            if any(held.values()):
                sys.exit(f"FAILED: the caches are empty, but the oracle says {held}")
            self.checks += 1

    def gone(self, name):
        """After a restart: the oracle must have noticed."""
        wait(f"{name} is up", lambda: self._is_empty(name))
        self.nothing_is_cached(name)

    def _is_empty(self, name):
        numbers = self.engines[name]._bridge.numbers(name)
        return numbers["up"] == 1 and numbers.get("held_blocks") == 0


def main(oracle, ops, path, phase, *rest):
    try:
        with open(path) as f:
            state = json.load(f)
    except FileNotFoundError:
        state = {"seed": 7, "phases": 0, "conversations": [None] * 12}
        state["system"] = [random.Random(7).choice(VOCABULARY) for _ in range(3 * BLOCK + 5)]
    arguments = [a for a in rest if "=" not in a]
    bridge = Bridge(ops)
    engines = [Engine(a, bridge) for a in rest if "=" in a]
    with grpc.insecure_channel(oracle) as channel:
        g = Gateway(channel, engines, state)
        {"turns": lambda: g.turns(int(arguments[0])), "burst": lambda: g.burst(int(arguments[0])), "reset": g.reset,
         "gone": lambda: g.gone(arguments[0]), "settle": lambda: [e.settle() for e in engines]}[phase]()
    state["phases"] += 1
    with open(path, "w") as f:
        json.dump(state, f)
    print(f"turns.py {phase}: checks={g.checks} hits={g.hits} evicted={g.evicted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
