// A whole gateway in TypeScript over HTTP and JSON, without dependencies: ask, forward, say how it went, fail open.
//
//   kvoracle --http-listen 127.0.0.1:7072
//   node examples/typescript/gateway.ts
//
// It listens on 127.0.0.1:8080 and forwards OpenAI's API to the workers that kvoracle knows.
import http from 'node:http';

const env = process.env;
const oracle = `http://${env.KVORACLE ?? '127.0.0.1:7072'}`;
const patience = Number(env.PATIENCE_MS ?? 20); // for a decision; then the choice is ours
const agent = new http.Agent({keepAlive: true});

type Target = {worker_id: string; dp_rank: number; address: string};
type Choice = {decision: string; targets: Target[]}; // best first; no decision: ours
type Worker = {state: string; spec: {worker_id: string; address: string; model: string}};

// ---- what is left to do without the oracle: the worker with the fewest of our own requests ----

let fleet: Worker[] = [];
const busy = new Map<string, number>(); // requests under way, by address

async function list(): Promise<void> {
  try {
    const answer = await fetch(`${oracle}/v1/workers`, {signal: AbortSignal.timeout(2000)});
    const workers = ((await answer.json()) as {workers: Worker[]}).workers;
    // A list that is empty is that of an oracle which has just been started: what was known before is better.
    if (answer.ok && workers.length > 0) fleet = workers;
  } catch {
    // It is away. What was known before is what there is.
  }
}

function ours(model?: string): Choice {
  const ready = fleet.filter((w) => w.state === 'WORKER_STATE_READY');
  const same = ready.filter((w) => w.spec.model === model);
  const targets = (same.length > 0 ? same : ready).map((w) => ({worker_id: w.spec.worker_id, dp_rank: 0, address: w.spec.address}));
  targets.sort((a, b) => (busy.get(a.address) ?? 0) - (busy.get(b.address) ?? 0) || Math.random() - 0.5);
  return {decision: '', targets};
}

// ---- ask ----

// choose gives where to send a request, or null if no worker can take it.
async function choose(body: Buffer, session: string): Promise<Choice | null> {
  let model: string | undefined;
  try {
    const asked = JSON.parse(body.toString());
    model = asked.model;
    const prompt = asked.messages ?? asked.prompt ?? asked.input;
    const question: Record<string, unknown> = {model, session_id: session, cache_salt: asked.cache_salt ?? ''};
    if (Array.isArray(prompt) && typeof prompt[0] === 'number') {
      question.tokens = {token_ids: prompt};
    } else {
      // What stays the same from turn to turn comes first, and no bracket closes what the next turn will continue.
      question.text = [asked.tools, asked.system, prompt].map((p) => (p ? JSON.stringify(p) : '')).join('').slice(0, -1);
    }
    const answer = await fetch(`${oracle}/v1/route`, {
      method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(question), signal: AbortSignal.timeout(patience),
    });
    const said = await answer.text();
    if (answer.ok) {
      const d = JSON.parse(said);
      return {decision: d.decision_id, targets: [d.target, ...d.alternatives.map((a: {target: Target}) => a.target)]};
    }
    if (said.includes('"NO_ELIGIBLE_WORKER"')) return null;
  } catch {
    // Not JSON, or no answer in time.
  }
  return ours(model);
}

// ---- say how it went ----

const mostQueued = 16384; // further ones are dropped: bookings end by their leases
let queue: object[] = [];
const lives = new Set<string>();

function tell(decision: string, step: object): void {
  if (decision && queue.length < mostQueued) queue.push({decision_id: decision, ...step});
}

let isFlushing = false; // one at a time, or a request's end could overtake its first token

async function flush(): Promise<void> {
  if (isFlushing) return;
  isFlushing = true;
  try {
    while (queue.length > 0) {
      const events = queue.splice(0, 1000);
      await fetch(`${oracle}/v1/progress`, {
        method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({events}), signal: AbortSignal.timeout(2000),
      });
    }
  } catch {
    // it is away, and will have forgotten them when it is back
  } finally {
    isFlushing = false;
  }
}

function usage(text: string): object {
  const count = (name: string) => {
    const found = text.match(new RegExp(`"${name}":\\s*(\\d+)`));
    return found ? Number(found[1]) : undefined;
  };
  return {output_tokens: count('completion_tokens'), prompt_tokens: count('prompt_tokens'), cached_tokens: count('cached_tokens')};
}

// ---- forward ----

// drained waits until the client has taken what waits for it, or has left.
function drained(res: http.ServerResponse): Promise<void> {
  return new Promise((go) => {
    const done = () => {
      res.off('drain', done).off('close', done);
      go();
    };
    res.on('drain', done).on('close', done);
  });
}

function send(target: Target, req: http.IncomingMessage, res: http.ServerResponse, body: Buffer): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    const to = new URL(`http://${target.address}`);
    const out = http.request({
      agent, hostname: to.hostname.replace(/^\[|\]$/g, ''), port: to.port, method: req.method, path: req.url,
      headers: {...req.headers, host: target.address},
    }, resolve);
    out.on('error', reject);
    res.on('close', () => out.destroy()); // a client that has left frees its worker
    out.end(body);
  });
}

async function handle(req: http.IncomingMessage, res: http.ServerResponse): Promise<void> {
  const pieces: Buffer[] = [];
  for await (const piece of req) pieces.push(piece);
  const body = Buffer.concat(pieces);
  const session = String(req.headers['x-session-id'] ?? '').slice(0, 128);
  const choice = req.method === 'POST' ? await choose(body, session) : ours();
  if (choice === null) {
    res.writeHead(503, {'retry-after': '1'}).end('no worker can take this request\n');
    return;
  }
  const {decision} = choice;
  if (decision) lives.add(decision);
  const tried = new Set<string>();
  let end: object = {failed: {}};
  for (const target of [...choice.targets, ...ours().targets]) {
    if (tried.has(target.address) || res.closed) continue;
    tried.add(target.address);
    busy.set(target.address, (busy.get(target.address) ?? 0) + 1);
    try {
      const answer = await send(target, req, res, body);
      tell(decision, {dispatched: {target: {worker_id: target.worker_id, dp_rank: target.dp_rank}}});
      res.writeHead(answer.statusCode ?? 502, answer.headers);
      let tail = '', counted = '';
      for await (const piece of answer) {
        if (tail === '') tell(decision, {first_token: {}});
        // What the engine has counted is mostly at the end, but logprobs and token ids that were asked for come after it.
        tail += piece;
        const at = Math.max(tail.lastIndexOf('"usage":{'), tail.lastIndexOf('"usage": {'));
        if (at >= 0) counted = tail.slice(at, at + 4096);
        tail = tail.slice(-4096);
        if (!res.write(piece) && !res.closed) await drained(res);
      }
      res.end();
      const status = answer.statusCode ?? 502;
      if (status < 500) end = status < 300 ? {finished: usage(counted)} : {cancelled: {}}; // refused: nothing is cached
      break;
    } catch {
      if (res.headersSent) break; // it has begun to answer: nobody else can go on from there
    } finally {
      busy.set(target.address, (busy.get(target.address) ?? 1) - 1);
    }
  }
  if (res.closed && !res.writableFinished) end = {cancelled: {}};
  lives.delete(decision);
  tell(decision, end);
  if (!res.headersSent) res.writeHead(502).end('no worker answers\n');
  else if (!res.writableEnded) res.destroy();
}

await list();
setInterval(list, 5000);
setInterval(flush, 50);
setInterval(() => lives.forEach((d) => tell(d, {generating: {}})), 20_000); // renews the leases of long answers
const [host, port] = (env.LISTEN ?? '127.0.0.1:8080').split(':');
http.createServer((req, res) => void handle(req, res).catch(() => res.destroy())).listen(Number(port), host);
