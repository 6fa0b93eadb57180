"""Conversations through LiteLLM's own router, set up as deploy/litellm/config.yaml (argv[1]) says. One JSON command a line on
stdin; one JSON answer a line on stdout.
"""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
sys.path.insert(0, os.path.dirname(sys.argv[1]))

import litellm  # noqa: E402
import yaml  # noqa: E402

with open(sys.argv[1]) as f:
    config = yaml.safe_load(f)
module, name = config["litellm_settings"]["callbacks"].split(".")
oracle = getattr(__import__(module), name)
litellm.suppress_debug_info = True


def router():
    return litellm.Router(
        model_list=[{**m, "litellm_params": {**m["litellm_params"], "api_key": "x"}} for m in config["model_list"]],
        **config["router_settings"],
    )


async def talks(r, name, talks, turns, stream):
    errors = []
    few = asyncio.Semaphore(4)
    said = [[] for _ in range(talks)]

    async def turn(i, n):
        said[i].append({"role": "user", "content": f'{name} {i} "asks" \\{n}.\n' * 40})
        async with few:
            try:
                answer = await r.acompletion(
                    model="m", messages=said[i], max_tokens=4, stream=stream,
                    **({"stream_options": {"include_usage": True}} if stream else {}),
                )
                if stream:
                    text = ""
                    async for chunk in answer:
                        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                else:
                    text = answer.choices[0].message.content
                if not text.startswith("x x"):
                    errors.append(f"talk {i}, turn {n}: {text!r}")
            except Exception as error:  # noqa: BLE001 - the test judges
                errors.append(f"talk {i}, turn {n}: {error!r}"[:500])
        said[i].append({"role": "assistant", "content": "Indeed."})

    for n in range(turns):
        await asyncio.gather(*(turn(i, n) for i in range(talks)))
    return errors


async def main():
    loop = asyncio.get_running_loop()
    r = router()
    print(json.dumps({"errors": None}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        litellm.callbacks = [oracle] if command.pop("asks") else []
        oracle.chosen = oracle.unanswered = 0
        errors = await talks(r, **command)
        print(json.dumps({"errors": errors, "chosen": oracle.chosen, "unanswered": oracle.unanswered}), flush=True)


asyncio.run(main())
os._exit(0)
