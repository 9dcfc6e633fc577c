"""A uvicorn engine, like vLLM and SGLang, that counts concurrent requests.

Usage: engine.py CAPACITY

The port is printed on stdout. Any POST streams max_tokens events and [DONE], and ends the body 20 ms later. GET
/stats returns the maximum number of concurrent requests (most), the number of requests that arrived above CAPACITY
(over), and the longest time above CAPACITY. A request counts from the start to the end of the request's task.
most_working and over_working exclude requests that have sent the last chunk or were cancelled, and whose task is
about to end.
"""

import asyncio
import json
import socket
import sys
import time

import uvicorn

CAPACITY = int(sys.argv[1])
EVENT_S, AFTER_DONE_S = 0.002, 0.02


class Count:
    entered = inside = most = over = 0
    longest_over_ms = over_since = 0.0
    # Requests inside that have not sent the last chunk and are not cancelled.
    working = most_working = over_working = 0

    def enter(self):
        self.entered += 1
        self.inside += 1
        self.working += 1
        self.most = max(self.most, self.inside)
        self.most_working = max(self.most_working, self.working)
        self.over_working += self.working > CAPACITY
        if self.inside > CAPACITY:
            self.over += 1
            self.over_since = self.over_since or time.monotonic()

    def leave(self):
        self.inside -= 1
        if self.over_since and self.inside <= CAPACITY:
            self.longest_over_ms = max(self.longest_over_ms, 1000 * (time.monotonic() - self.over_since))
            self.over_since = 0.0


count = Count()


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    if scope["method"] == "GET":
        stats = {k: getattr(count, k) for k in ("entered", "inside", "most", "over", "longest_over_ms", "most_working", "over_working")}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(stats).encode()})
        return
    count.enter()
    streaming = None
    try:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        # Like Starlette: one task streams, the other cancels the stream on a disconnect.
        streaming = asyncio.create_task(stream(json.loads(body), send))
        disconnect = asyncio.create_task(disconnected(receive))
        await asyncio.wait([streaming, disconnect], return_when=asyncio.FIRST_COMPLETED)
        streaming.cancel()
        disconnect.cancel()
        await asyncio.gather(streaming, disconnect, return_exceptions=True)
    finally:
        if streaming is None:
            count.working -= 1
        count.leave()


async def stream(request, send):
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for n in range(request["max_tokens"]):
            await asyncio.sleep(EVENT_S)
            event = json.dumps({"choices": [{"index": 0, "delta": {"content": str(n)}}]})
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await asyncio.sleep(AFTER_DONE_S)
        await send({"type": "http.response.body"})
    finally:
        count.working -= 1


async def disconnected(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


listener = socket.create_server(("127.0.0.1", 0))
print(f"port {listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
