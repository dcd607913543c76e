"""A deterministic stub that streams like llama-server; for costs and planted faults.

Usage: stub_server.py PORT_FILE [JSON faults]. One chunk per token; tokens follow from the prompt.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path


def tokens_for(prompt, count, fault):
    state = 7
    for token in prompt if isinstance(prompt, list) else prompt.encode():
        state = (state * 31 + token) % 1_000_003
    out = []
    for position in range(count):
        token = state % 50000
        if fault.get("change_at") == position and fault.get("change_if", "") in str(prompt):
            token += 1
        out.append(token)
        state = (state * 31 + 11) % 1_000_003
    return out


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stub(asyncio.Protocol):
    def __init__(self, fault):
        self.fault = fault

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            self.key = head.partition(b"Bearer ")[2].split(b"\r")[0].decode()
            self.answer(head.split(b" ", 2)[1].decode(), rest[:length])

    def answer(self, path, body):
        if path == "/health":
            self.whole({"status": "ok"})
            return
        if path in ("/version", "/get_server_info") or (
            self.fault.get("anonymous") and path == "/props"
        ):
            self.whole({"error": {"message": "not found"}}, 404)
            return
        if path == "/props":
            self.whole(
                {
                    "build_info": "stub-1",
                    "total_slots": self.fault.get("slots", 64),
                    "default_generation_settings": {"n_ctx": 4096},
                }
            )
            return
        request = json.loads(body)
        if self.fault.get("status"):
            echo = f" of {self.key}" if self.fault.get("echo_key") else ""
            self.whole({"error": {"message": "planted refusal" + echo}}, self.fault["status"])
            return
        count = request.get("n_predict") or request.get("max_tokens")
        prompt = request.get("prompt") or request["messages"][0]["content"]
        tokens = tokens_for(prompt, count - self.fault.get("short", 0), self.fault)
        self.transport.write(STREAM_HEAD)
        if path == "/completion":
            self.native(request, tokens)
        else:
            self.openai(request, tokens)

    def native(self, request, tokens):
        parts = []
        for n, token in enumerate(tokens, 1):
            parts.append(
                {
                    "index": 0,
                    "content": f" t{token}",
                    "tokens": [token],
                    "stop": False,
                    "tokens_predicted": n,
                }
            )
        cached = self.fault.get("cache_n", 0)
        parts.append(
            {
                "index": 0,
                "content": "",
                "tokens": [],
                "stop": True,
                "stop_type": "limit",
                "tokens_predicted": len(tokens),
                "truncated": False,
                "tokens_evaluated": len(request["prompt"]),
                "timings": {
                    "cache_n": cached,
                    "prompt_n": len(request["prompt"]) - cached,
                    "prompt_ms": 1.0,
                    "predicted_n": len(tokens),
                    "predicted_ms": 1.0,
                },
            }
        )
        self.send(parts, b"")

    def openai(self, request, tokens):
        parts = [
            {"choices": [{"index": 0, "text": f" t{token}", "finish_reason": None}]}
            for token in tokens
        ]
        parts.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        parts.append(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": len(tokens),
                },
            }
        )
        self.send(parts, b"data: [DONE]\n\n")

    def send(self, parts, end):
        loop = asyncio.get_running_loop()
        gap = self.fault.get("gap_s", 0.0)
        for n, part in enumerate(parts):
            data = chunk(b"data: " + json.dumps(part).encode() + b"\n\n")
            if self.fault.get("die_after") == n:
                loop.call_later(gap * n, self.transport.abort)
                return
            if gap:
                loop.call_later(gap * n, self.transport.write, data)
            else:
                self.transport.write(data)
        last = (chunk(end) if end else b"") + b"0\r\n\r\n"
        if gap:
            loop.call_later(gap * len(parts), self.transport.write, last)
        else:
            self.transport.write(last)

    def whole(self, document, status=200):
        body = json.dumps(document).encode()
        self.transport.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )


async def serve(port, fault, port_file=None):
    await asyncio.sleep(fault.get("slow_start_s", 0))
    loop = asyncio.get_running_loop()
    tls = None
    if "certificate" in fault:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(fault["certificate"], fault["key"])
        # A client that turns the certificate down is the client's to report.
        loop.set_exception_handler(lambda *_: None)
    server = await loop.create_server(lambda: Stub(fault), "127.0.0.1", port, ssl=tls)
    if port_file is not None:
        new = port_file.with_suffix(".new")
        new.write_text(str(server.sockets[0].getsockname()[1]))
        new.rename(port_file)
    await server.serve_forever()


if __name__ == "__main__":
    planted = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    asyncio.run(serve(0, planted, Path(sys.argv[1])))
