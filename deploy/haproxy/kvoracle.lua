-- Asks kvoracle where a request should go, and says what became of it. See haproxy.cfg.

local address = os.getenv("KVORACLE")
local token = os.getenv("KVORACLE_TOKEN")
local patience = 0.02 -- seconds for each step of a question: connecting, asking, the answer's next piece
local renewal = 20 -- seconds between signs of life, which renew a booking's lease
local most_queued = 16384 -- events; further ones are dropped, and bookings end by their leases

-- post asks kvoracle. HAProxy's own httpclient would try again for three seconds.
local function post(path, body, timeout)
    local s = core.tcp()
    s:settimeout(timeout)
    local host, port = address:match("^%[?(.-)%]?:(%d+)$")
    if not s:connect(host, tonumber(port)) then
        s:close()
        return nil
    end
    s:send("POST " .. path .. " HTTP/1.0\r\nHost: " .. address .. "\r\nContent-Type: application/json\r\n"
        .. (token and "Authorization: Bearer " .. token .. "\r\n" or "")
        .. "Content-Length: " .. #body .. "\r\n\r\n" .. body)
    local status = s:receive("*l")
    local rest = status and s:receive("*a")
    s:close()
    return status and tonumber(status:match("^HTTP/%S+ (%d+)")), rest or ""
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function quote(s)
    return '"' .. s:gsub('[%c"\\]', function(c)
        return escapes[c] or string.format("\\u%04x", c:byte())
    end) .. '"'
end

-- ask makes a RouteRequest of what engines are asked with; nil: there is no prompt in it.
local function ask(txn)
    local body = txn.sf:req_body()
    local model = txn.c:json_query(body, "$.model")
    if not model then
        return nil
    end
    local head = '{"model":' .. quote(model) .. ',"session_id":' .. quote((txn.sf:req_hdr("x-session-id")):sub(1, 128)) .. ","
    local ids = body:match('"prompt"%s*:%s*(%[[%d%s,]+%])')
    if ids then
        return head .. '"tokens":{"token_ids":' .. ids .. "}}"
    end
    -- From where the prompt begins: what is the same from turn to turn must come first.
    local from = body:find('"messages"%s*:') or body:find('"prompt"%s*:') or body:find('"input"%s*:')
    return from and head .. '"text":' .. quote(body:sub(from)) .. "}"
end

-- is_up says whether HAProxy finds a worker well.
local function is_up(worker)
    local server = core.backends["workers"].servers[worker]
    local status = server and server:get_stats()["status"]
    return status ~= nil and (status:find("^UP") or status:find("^no check")) ~= nil
end

core.register_action("kvoracle", { "http-req" }, function(txn)
    local question = ask(txn)
    if not question then
        return
    end
    local status, answer = post("/v1/route", question, patience)
    if status == 503 and answer:find('"NO_ELIGIBLE_WORKER"', 1, true) then
        txn:set_var("txn.kvoracle_refused", true)
    elseif status == 200 then
        txn:set_var("txn.kvoracle_decision", answer:match('"decision_id":%s*"(%x+)"'))
        -- The choice, and those that come after it.
        for worker in answer:gmatch('"worker_id":%s*"([^"]+)"') do
            if is_up(worker) then
                txn:set_var("txn.kvoracle_worker", worker)
                return
            end
        end
    end
end, 0)

local queue = {} -- events that are still to be told
local lives = {} -- decisions under way, each with the time of its last sign of life

local function tell(decision, step)
    if #queue < most_queued then
        queue[#queue + 1] = '{"decision_id":"' .. decision .. '",' .. step .. "}"
    end
end

core.register_task(function()
    while true do
        core.msleep(50)
        local now = core.now().sec
        for decision, seen in pairs(lives) do
            if now - seen >= renewal then
                lives[decision] = now
                tell(decision, '"generating":{}')
            end
        end
        while #queue > 0 do
            local batch = table.move(queue, 1, math.min(#queue, 1000), 1, {})
            queue = table.move(queue, #batch + 1, #queue, 1, {})
            if not post("/v1/progress", '{"events":[' .. table.concat(batch, ",") .. "]}", 1) then
                break -- it is away, and will have forgotten them when it is back
            end
        end
    end
end)

-- usage is what the engine has counted, if it says so, as a Finished event.
local function usage(text)
    local out = {}
    local function count(field, a, b)
        local n = text:match('"' .. a .. '":%s*(%d+)') or text:match('"' .. b .. '":%s*(%d+)')
        out[#out + 1] = n and '"' .. field .. '":' .. n
    end
    count("output_tokens", "completion_tokens", "output_tokens")
    count("prompt_tokens", "prompt_tokens", "input_tokens")
    count("cached_tokens", "cached_tokens", "cache_read_input_tokens")
    return '"finished":{' .. table.concat(out, ",") .. "}"
end

-- The filter sees a request's life. There is one for each.
local Watch = { id = "kvoracle", flags = filter.FLT_CFG_FL_HTX }
Watch.__index = Watch

function Watch:new()
    return setmetatable({ tail = "", usage = "" }, Watch)
end

function Watch:http_headers(txn, msg)
    if not msg.channel:is_resp() then
        self.decision = txn:get_var("txn.kvoracle_decision")
        if self.decision then
            lives[self.decision] = core.now().sec
        end
    elseif self.decision then
        self.status = tonumber(msg:get_stline().code)
        tell(self.decision, '"dispatched":{"target":{"worker_id":' .. quote(txn.sf:srv_name()) .. "}}")
        filter.register_data_filter(self, msg.channel)
    end
end

function Watch:http_payload(_, msg)
    if not msg.channel:is_resp() or not self.decision then
        return
    end
    local piece = msg:body()
    if piece and #piece > 0 then
        if not self.has_begun then
            self.has_begun = true
            tell(self.decision, '"first_token":{}')
        end
        -- What the engine has counted is mostly at the end, but logprobs and token ids that were asked for come after it.
        local all = self.tail .. piece
        local at = all:match('.*()"usage": ?{')
        self.usage = at and all:sub(at, at + 4095) or self.usage
        self.tail = all:sub(-4096)
    end
end

function Watch:finish(step)
    if self.decision then
        tell(self.decision, step)
        lives[self.decision] = nil
        self.decision = nil
    end
end

function Watch:http_end(_, msg)
    if msg.channel:is_resp() then
        -- What an engine refuses has left nothing in its cache.
        self:finish(self.status < 300 and usage(self.usage) or self.status < 500 and '"cancelled":{}' or '"failed":{}')
    end
end

-- Without an end the client or the worker has left.
function Watch:end_analyze(_, channel)
    if channel:is_resp() then
        self:finish('"cancelled":{}')
    end
end

core.register_filter("kvoracle", Watch, function(watch)
    return watch
end)
