"""Asks kvoracle where LiteLLM's router should send a request, and says what became of it. See config.yaml.

A deployment is the worker whose address is its api_base's host and port. Whatever goes wrong here, the router chooses as it
would without.
"""

import asyncio
import collections
import json
import os
from urllib.parse import urlsplit

import httpx
from litellm.integrations.custom_logger import CustomLogger

MOST = 16384  # steps that wait to be told, and traces whose failures are remembered; beyond it the oldest are forgotten


class KVOracle(CustomLogger):
    """One for a process. deadline is in seconds, and all that a request waits for kvoracle."""

    def __init__(self, oracle="http://127.0.0.1:7072", deadline=0.02):
        super().__init__()
        self.oracle, self.deadline = oracle, deadline
        self.chosen = self.unanswered = 0  # requests that kvoracle placed, and that the router placed by itself
        self._loop = self._http = self._telling = None
        self._steps = collections.deque(maxlen=MOST)
        self._failed = collections.OrderedDict()  # sets of addresses, by the trace of the request that failed there

    # ---- ask ----

    async def async_filter_deployments(
        self, model, healthy_deployments, messages, request_kwargs=None, parent_otel_span=None
    ):
        request = request_kwargs or {}
        deployments, chosen = self._untried(healthy_deployments, request), None
        try:
            chosen = await self._choose(deployments, messages, request)
        except Exception:  # an oracle that is away, slow or wrong, and a request it cannot judge
            pass
        if chosen is None:
            self.unanswered += 1
            return deployments
        self.chosen += 1
        return [chosen]

    def _untried(self, deployments, request):
        """Those at which the request, or another of its trace, has not just failed; all, if it has at each."""
        failed = self._failed.get(request.get("litellm_trace_id"), ())
        return [d for d in deployments if _address(d["litellm_params"]) not in failed] or deployments

    async def _choose(self, deployments, messages, request):
        metadata = _metadata(request)
        question = self._question(deployments, messages, request, metadata)
        if question is None:
            return None
        task = asyncio.ensure_future(self._client().post("/v1/route", json=question))
        try:
            await asyncio.wait({task}, timeout=self.deadline)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            return None
        answer = task.result()
        if answer.status_code != 200:
            return None
        answer = answer.json()
        targets = [answer["target"], *(a["target"] for a in answer["alternatives"])]
        by_address = {_address(d["litellm_params"]): d for d in deployments}  # those that the router holds to be well
        decision = answer["decision_id"]
        target = next((t for t in targets if t["address"] in by_address), None)
        if target is None:
            self._tell({"decision_id": decision, "cancelled": {}})
            return None
        self._tell({
            "decision_id": decision,
            "dispatched": {"target": {"worker_id": target["worker_id"], "dp_rank": target["dp_rank"]}},
        })
        metadata["kvoracle_decision"] = decision  # comes back with the outcome
        return by_address[target["address"]]

    def _question(self, deployments, messages, request, metadata):
        """A RouteRequest of what the router is asked with; None: there is no prompt in it, or nothing to choose."""
        if not deployments:
            return None
        params = deployments[0]["litellm_params"]
        question = {
            "model": params["model"].split("/", 1)[-1],  # without the provider, as engines name it
            "session_id": str(metadata.get("session_id") or "")[:128],
            "cache_salt": str(request.get("cache_salt") or ""),
            "max_alternatives": 16,
        }
        prompt = messages or request.get("prompt") or request.get("input")
        if not prompt:
            return None
        if isinstance(prompt, list) and isinstance(prompt[0], int):
            return {**question, "tokens": {"token_ids": prompt}}
        # What stays the same from turn to turn comes first, and no bracket closes what the next turn will continue.
        parts = [request.get("tools"), prompt]
        question["text"] = "".join(json.dumps(p, ensure_ascii=False) for p in parts if p)[:-1]
        return question

    def _client(self):
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to a loop
            self._loop, self._telling = loop, None
            self._http = httpx.AsyncClient(base_url=self.oracle, timeout=max(2.0, self.deadline), trust_env=False)
        return self._http

    # ---- say how it went ----

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self._failed.pop(kwargs.get("litellm_trace_id"), None)
        decision = self._decision(kwargs)
        if not decision:
            return
        first, sent = kwargs.get("completion_start_time"), kwargs.get("api_call_start_time") or start_time
        if kwargs.get("stream") and first and sent:
            ttft = max((first - sent).total_seconds(), 0)
            self._tell({"decision_id": decision, "first_token": {"ttft_seconds": ttft}})
        counts = {}
        usage = getattr(response_obj, "usage", None)
        if usage is not None:
            counts = {"output_tokens": usage.completion_tokens or 0, "prompt_tokens": usage.prompt_tokens or 0}
            details = getattr(usage, "prompt_tokens_details", None)
            if getattr(details, "cached_tokens", None) is not None:
                counts["cached_tokens"] = details.cached_tokens
        self._tell({"decision_id": decision, "finished": counts})

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        error, params = kwargs.get("exception"), kwargs.get("litellm_params") or {}
        code, trace = getattr(error, "status_code", 500), kwargs.get("litellm_trace_id")
        is_request = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)  # it would fail elsewhere, too
        if trace and not is_request:
            self._failed.setdefault(trace, set()).add(_address(params))
            self._failed.move_to_end(trace)
            if len(self._failed) > MOST:
                self._failed.popitem(last=False)
        if decision := self._decision(kwargs):
            self._tell({"decision_id": decision, "failed": {"reason": type(error).__name__}})

    @staticmethod
    def _decision(kwargs):
        return _metadata(kwargs.get("litellm_params") or {}).get("kvoracle_decision")

    def _tell(self, step):
        self._steps.append(step)
        self._client()
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._flush())

    async def _flush(self):
        while self._steps:
            events = [self._steps.popleft() for _ in range(min(len(self._steps), 1000))]
            try:
                await self._http.post("/v1/progress", json={"events": events})
            except httpx.HTTPError:
                # It is away. Steps only move forward, so that telling one twice does no harm; bookings end by their leases too.
                if len(self._steps) + len(events) <= MOST:
                    self._steps.extendleft(reversed(events))
                return  # the next step tries again


def _metadata(request):
    """What the router notes of a request: the same dict in all hooks."""
    return request.get("metadata") or request.get("litellm_metadata") or {}


def _address(params):
    """Host and port of a deployment, as workers are registered with."""
    return urlsplit(params.get("api_base") or "").netloc


instance = KVOracle(
    os.environ.get("KVORACLE_URL", "http://127.0.0.1:7072"), float(os.environ.get("KVORACLE_DEADLINE", "0.02"))
)
