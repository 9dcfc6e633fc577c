"""Runs scripts with the official Python SDK and prints the outcome of each, one JSON object per line.

Usage: matrix.py BASE_URL ACK_URL SCRIPTS

A script is {"name": …, "operation": …, "acknowledge": …, "retries": …}. If acknowledge is true, ACK_URL is fetched for
every received text. The variants are the sync client, the async client and the streaming helpers.
"""

import asyncio
import inspect
import json
import sys
import urllib.request

import openai
import pydantic

BASE_URL, ACK_URL = sys.argv[1:3]
MODEL = "acme/demo"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
        "strict": True,
    },
}


class Forecast(pydantic.BaseModel):
    city: str
    degrees: float


class Runner:
    def __init__(self, variant, client):
        self.variant, self.client = variant, client

    def configured(self, script):
        retries = script.get("retries")
        return self.client if retries is None else self.client.with_options(max_retries=retries)

    async def run(self, script):
        """Returns the outcome of a script, or None if this variant does not support the operation."""
        operation = getattr(self, script["operation"] + ("_helped" if self.variant == "helper" else ""), None)
        if operation is None:
            return None
        self.outcome = {}
        self.acknowledge = script["acknowledge"]
        self.prompt = f"|{script['name']}|"
        self.messages = [{"role": "user", "content": self.prompt}]
        try:
            await operation(self.configured(script))
        except Exception as error:
            self.outcome["error"] = describe(error)
        return self.outcome

    def receive_text(self, text):
        self.outcome["text"] = self.outcome.get("text", "") + text
        if text and self.acknowledge:
            urllib.request.urlopen(ACK_URL).read()

    async def models(self, client):
        self.outcome["ids"] = [model.id async for model in each(client.models.list())]

    async def model(self, client):
        self.outcome["id"] = (await settled(client.models.retrieve(MODEL))).id

    async def chat(self, client, **more):
        response = await settled(client.chat.completions.create(model=MODEL, messages=self.messages, **more))
        self.outcome["response"] = response.to_dict() if hasattr(response, "to_dict") else str(response)
        self.outcome["id"] = bool(getattr(response, "_request_id", None))

    async def stream(self, client, **more):
        stream = await settled(client.chat.completions.create(model=MODEL, messages=self.messages, stream=True, **more))
        self.outcome["chunks"] = []
        async for chunk in each(stream):
            self.outcome["chunks"].append(chunk.to_dict())
            self.receive_text("".join(choice.delta.content or "" for choice in chunk.choices or []))

    async def stream_helped(self, client, **more):
        async with both(client.chat.completions.stream(model=MODEL, messages=self.messages, **more)) as stream:
            async for event in each(stream):
                self.outcome.setdefault("events", []).append(event.type)
                if event.type == "content.delta":
                    self.receive_text(event.delta)
            self.outcome["final"] = (await settled(stream.get_final_completion())).to_dict()

    async def tools(self, client):
        await self.chat(client, tools=[WEATHER])

    async def toolStream(self, client):
        await self.stream(client, tools=[WEATHER])

    async def toolStream_helped(self, client):
        await self.stream_helped(client, tools=[WEATHER])

    async def structured(self, client):
        response = await settled(client.chat.completions.parse(model=MODEL, messages=self.messages, response_format=Forecast))
        self.outcome["parsed"] = response.choices[0].message.parsed.model_dump()

    async def structuredStream_helped(self, client):
        await self.stream_helped(client, response_format=Forecast)

    async def embeddings(self, client, **more):
        response = await settled(client.embeddings.create(model=MODEL, input=[self.prompt, "two"], **more))
        self.outcome["response"] = response.to_dict()

    async def floats(self, client):
        await self.embeddings(client, encoding_format="float")

    async def response(self, client):
        response = await settled(client.responses.create(model=MODEL, input=self.prompt))
        self.outcome["response"], self.outcome["text"] = response.to_dict(), response.output_text

    async def responseStream(self, client):
        stream = await settled(client.responses.create(model=MODEL, input=self.prompt, stream=True))
        self.outcome["events"] = []
        async for event in each(stream):
            self.outcome["events"].append(event.to_dict())

    async def responseStream_helped(self, client):
        async with both(client.responses.stream(model=MODEL, input=self.prompt)) as stream:
            async for event in each(stream):
                self.outcome.setdefault("events", []).append(event.type)
            self.outcome["text"] = (await settled(stream.get_final_response())).output_text

    async def disconnect(self, client):
        stream = await settled(client.chat.completions.create(model=MODEL, messages=self.messages, stream=True))
        async for chunk in each(stream):
            if chunk.choices[0].delta.content:
                self.outcome["text"] = chunk.choices[0].delta.content
                break
        await settled(stream.close())


async def settled(value):
    return await value if inspect.isawaitable(value) else value


async def each(stream):
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


class both:
    """An async context manager around a sync or async one."""

    def __init__(self, manager):
        self.manager = manager

    async def __aenter__(self):
        return await self.manager.__aenter__() if hasattr(self.manager, "__aenter__") else self.manager.__enter__()

    async def __aexit__(self, *error):
        if hasattr(self.manager, "__aexit__"):
            return await self.manager.__aexit__(*error)
        return self.manager.__exit__(*error)


def describe(error):
    """Returns the information that a user gets from an error."""
    names = ("status_code", "code", "type", "param", "message", "body")
    fields = {name: getattr(error, name) for name in names if hasattr(error, name)}
    if response := getattr(error, "response", None):
        header_names = ("retry-after", "retry-after-ms", "x-should-retry", "x-ratelimit-remaining-requests", "www-authenticate", "openai-processing-ms", "content-type")
        fields["headers"] = {name: response.headers.get(name) for name in header_names}
        fields["request_id"] = bool(error.request_id)
    return {"class": type(error).__name__, **(fields or {"message": str(error)})}


async def main():
    with open(sys.argv[3]) as file:
        scripts = json.load(file)
    for variant in ("sync", "async", "helper"):
        kind = openai.AsyncOpenAI if variant == "async" else openai.OpenAI
        client = kind(base_url=BASE_URL, api_key="none", timeout=100, default_headers={"X-Variant": variant})
        runner = Runner(variant, client)
        for script in scripts:
            outcome = await runner.run(script)
            if outcome is not None:
                print(json.dumps({"variant": variant, "script": script["name"], "outcome": outcome}, default=str), flush=True)
        await settled(client.close())


if __name__ == "__main__":
    asyncio.run(main())
