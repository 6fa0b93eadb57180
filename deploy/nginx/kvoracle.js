// Asks kvoracle where a request should go, and says what became of it. See nginx.conf.

// route asks, and sends the request on. Without an answer it goes to the group of all workers.
async function route(r) {
    let question = null;
    try {
        question = ask(r);
    } catch (e) {
        // Not JSON, or too large to lie in memory: the engine may judge it.
    }
    if (question !== null) {
        const answer = await r.subrequest('/kvoracle/route', {method: 'POST', body: JSON.stringify(question)});
        if (answer.status === 200) {
            take(r, JSON.parse(answer.responseText));
        } else if (answer.status === 503 && (answer.responseText || '').includes('"NO_ELIGIBLE_WORKER"')) {
            r.headersOut['Retry-After'] = '1';
            r.return(503, 'no worker can take this request\n'); // all are drained, or at their limits
            return;
        }
    }
    next(r);
}

// ask makes a RouteRequest of what engines are asked with; null: there is no prompt in it.
function ask(r) {
    if (r.method !== 'POST') {
        return null;
    }
    const body = JSON.parse(r.requestText);
    const question = {
        model: body.model,
        request_id: r.variables.request_id,
        session_id: (r.headersIn['X-Session-Id'] || '').slice(0, 128),
        cache_salt: body.cache_salt || '',
    };
    if (Array.isArray(body.prompt) && typeof body.prompt[0] === 'number') {
        question.tokens = {token_ids: body.prompt};
        return question;
    }
    // What a model's template puts first comes first, and no bracket closes what the next turn will continue.
    const talk = body.messages || body.prompt || body.input;
    if (!body.model || !talk) {
        return null;
    }
    question.text = [body.tools, body.system || body.instructions, talk]
        .map((part) => (part ? JSON.stringify(part) : '')).join('').slice(0, -1);
    return question;
}

// take keeps the choice and those that come after it.
function take(r, answer) {
    const targets = [answer.target].concat(answer.alternatives.map((a) => a.target));
    r.variables.kvoracle_decision = answer.decision_id;
    r.variables.kvoracle_choices = targets.map((t) => `${t.address} ${t.worker_id} ${t.dp_rank}`).join('\n');
    r.variables.kvoracle_to = '';
}

// next sends the request to the choice that follows the one that failed, at last to the group of all workers.
function next(r) {
    const choices = (r.variables.kvoracle_choices || '').split('\n');
    const failed = choices.findIndex((c) => c.split(' ')[0] === r.variables.kvoracle_to);
    r.variables.kvoracle_to = (choices[failed + 1] || '').split(' ')[0] || 'workers';
    r.internalRedirect('@worker');
}

// watch lets the answer pass, and keeps what the engine has counted: mostly at its end, but logprobs and token ids that were asked
// for come after it.
function watch(r, data, flags) {
    const all = (r.variables.kvoracle_tail || '') + data;
    const at = Math.max(all.lastIndexOf('"usage":{'), all.lastIndexOf('"usage": {'));
    if (at >= 0) {
        r.variables.kvoracle_usage = all.slice(at, at + 4096);
    }
    r.variables.kvoracle_tail = all.slice(-4096);
    r.sendBuffer(data, flags);
}

// events is what became of the request, for POST /v1/progress. First tokens are not told: from here they could be told only
// at the end, when it is too late for kvoracle to know that a prefill is over. It goes by its own prediction then.
function events(r) {
    const id = r.variables.kvoracle_decision;
    const choice = (r.variables.kvoracle_choices || '').split('\n')
        .map((c) => c.split(' ')).find((c) => c[0] === r.variables.kvoracle_to);
    const out = [];
    if (choice) {
        out.push({decision_id: id, dispatched: {target: {worker_id: choice[1], dp_rank: Number(choice[2])}}});
    }
    const status = Number(r.variables.status);
    if (!choice || status >= 500) {
        out.push({decision_id: id, failed: {}});
    } else if (status >= 300 || r.variables.request_completion !== 'OK') { // refused, or left: nothing is cached
        out.push({decision_id: id, cancelled: {}});
    } else {
        out.push({decision_id: id, finished: usage(r.variables.kvoracle_usage || '')});
    }
    return JSON.stringify({events: out});
}

// usage is what the engine has counted, if it says so.
function usage(text) {
    const number = (name) => {
        const found = text.match(new RegExp(`"${name}":\\s*(\\d+)`));
        return found ? Number(found[1]) : undefined;
    };
    return {
        output_tokens: number('completion_tokens') || number('output_tokens') || 0,
        cached_tokens: number('cached_tokens') || number('cache_read_input_tokens'),
        prompt_tokens: number('prompt_tokens') || number('input_tokens') || 0,
    };
}

export default {route, next, watch, events};
