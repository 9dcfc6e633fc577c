"""Plays scenes with the official Python SDK and prints what came of each, a JSON object a line.

Usage: matrix.py BASE_URL HEARD_URL SCENES

A scene is {"name": …, "do": …, "hearing": …, "retries": …}. Where the server is to know, HEARD_URL is fetched for every
text that has arrived. The ways are the sync client, the async client and the streaming helpers.
"""

import asyncio
import inspect
import json
import sys
import urllib.request

import openai
import pydantic

BASE_URL, HEARD_URL = sys.argv[1:3]
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


class Player:
    def __init__(self, way, client):
        self.way, self.client = way, client

    def configured(self, scene):
        retries = scene.get("retries")
        return self.client if retries is None else self.client.with_options(max_retries=retries)

    async def play(self, scene):
        """Returns what came of a scene, or None if it is not for this way."""
        do = getattr(self, scene["do"] + ("_helped" if self.way == "helper" else ""), None)
        if do is None:
            return None
        self.outcome = {}
        self.hearing = scene["hearing"]
        self.prompt = f"|{scene['name']}|"
        self.messages = [{"role": "user", "content": self.prompt}]
        try:
            await do(self.configured(scene))
        except Exception as error:
            self.outcome["error"] = told(error)
        return self.outcome

    def hear(self, text):
        self.outcome["text"] = self.outcome.get("text", "") + text
        if text and self.hearing:
            urllib.request.urlopen(HEARD_URL).read()

    async def models(self, client):
        self.outcome["ids"] = [model.id async for model in each(client.models.list())]

    async def model(self, client):
        self.outcome["id"] = (await settled(client.models.retrieve(MODEL))).id

    async def chat(self, client, **more):
        answer = await settled(client.chat.completions.create(model=MODEL, messages=self.messages, **more))
        self.outcome["answer"] = answer.to_dict() if hasattr(answer, "to_dict") else str(answer)
        self.outcome["id"] = bool(getattr(answer, "_request_id", None))

    async def stream(self, client, **more):
        stream = await settled(client.chat.completions.create(model=MODEL, messages=self.messages, stream=True, **more))
        self.outcome["chunks"] = []
        async for chunk in each(stream):
            self.outcome["chunks"].append(chunk.to_dict())
            self.hear("".join(choice.delta.content or "" for choice in chunk.choices or []))

    async def stream_helped(self, client, **more):
        async with both(client.chat.completions.stream(model=MODEL, messages=self.messages, **more)) as stream:
            async for event in each(stream):
                self.outcome.setdefault("events", []).append(event.type)
                if event.type == "content.delta":
                    self.hear(event.delta)
            self.outcome["final"] = (await settled(stream.get_final_completion())).to_dict()

    async def tools(self, client):
        await self.chat(client, tools=[WEATHER])

    async def toolStream(self, client):
        await self.stream(client, tools=[WEATHER])

    async def toolStream_helped(self, client):
        await self.stream_helped(client, tools=[WEATHER])

    async def structured(self, client):
        answer = await settled(client.chat.completions.parse(model=MODEL, messages=self.messages, response_format=Forecast))
        self.outcome["parsed"] = answer.choices[0].message.parsed.model_dump()

    async def structuredStream_helped(self, client):
        await self.stream_helped(client, response_format=Forecast)

    async def embeddings(self, client, **more):
        answer = await settled(client.embeddings.create(model=MODEL, input=[self.prompt, "two"], **more))
        self.outcome["answer"] = answer.to_dict()

    async def floats(self, client):
        await self.embeddings(client, encoding_format="float")

    async def response(self, client):
        answer = await settled(client.responses.create(model=MODEL, input=self.prompt))
        self.outcome["answer"], self.outcome["text"] = answer.to_dict(), answer.output_text

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

    async def leave(self, client):
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
    """A context manager of either kind."""

    def __init__(self, manager):
        self.manager = manager

    async def __aenter__(self):
        return await self.manager.__aenter__() if hasattr(self.manager, "__aenter__") else self.manager.__enter__()

    async def __aexit__(self, *error):
        if hasattr(self.manager, "__aexit__"):
            return await self.manager.__aexit__(*error)
        return self.manager.__exit__(*error)


def told(error):
    """What a user can learn from an error."""
    names = ("status_code", "code", "type", "param", "message", "body")
    said = {name: getattr(error, name) for name in names if hasattr(error, name)}
    if response := getattr(error, "response", None):
        kept = ("retry-after", "retry-after-ms", "x-should-retry", "x-ratelimit-remaining-requests", "www-authenticate", "openai-processing-ms", "content-type")
        said["headers"] = {name: response.headers.get(name) for name in kept}
        said["request_id"] = bool(error.request_id)
    return {"class": type(error).__name__, **(said or {"message": str(error)})}


async def main():
    with open(sys.argv[3]) as file:
        scenes = json.load(file)
    for way in ("sync", "async", "helper"):
        kind = openai.AsyncOpenAI if way == "async" else openai.OpenAI
        client = kind(base_url=BASE_URL, api_key="none", timeout=100, default_headers={"X-Way": way})
        player = Player(way, client)
        for scene in scenes:
            outcome = await player.play(scene)
            if outcome is not None:
                print(json.dumps({"way": way, "scene": scene["name"], "outcome": outcome}, default=str), flush=True)
        await settled(client.close())


if __name__ == "__main__":
    asyncio.run(main())
