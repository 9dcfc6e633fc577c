"""Uses berth with the official Python SDK and checks the results.

Usage: client.py BASE_URL

The server has the models demo (alias assistant), full (the queue is full), dying (streams are
aborted), limited (the engine responds 429) and silent (the engine never responds).
"""

import asyncio
import json
import sys

import openai

BASE_URL = sys.argv[1]
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}},
    },
}

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=150)


def raises(kind, call, code=None):
    try:
        call()
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{type(error).__name__} where {kind.__name__} was due: {error}"
        assert code is None or error.code == code, f"code {error.code}, not {code}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def test_whole():
    response = client.chat.completions.create(model="demo", messages=HELLO, max_tokens=9)
    assert response.choices[0].message.content
    assert response.choices[0].finish_reason == "length"
    assert response.usage.completion_tokens == 9


def test_alias():
    assert client.chat.completions.create(model="assistant", messages=HELLO, max_tokens=1).choices


def test_stream():
    whole = client.chat.completions.create(model="demo", messages=HELLO, max_tokens=9)
    text, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=9, stream=True, stream_options=options
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content, text
    assert usage.completion_tokens == 9


def test_completion():
    response = client.completions.create(model="demo", prompt="Once", max_tokens=5)
    streamed = client.completions.create(model="demo", prompt="Once", max_tokens=5, stream=True)
    assert response.choices[0].text == "".join(chunk.choices[0].text for chunk in streamed)


def test_tool_call():
    response = client.chat.completions.create(model="demo", messages=HELLO, tools=[TOOL], tool_choice="required")
    call = response.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["input"]
    assert response.choices[0].finish_reason == "tool_calls"


def test_streamed_tool_call():
    with client.chat.completions.stream(model="demo", messages=HELLO, tools=[TOOL], tool_choice="required") as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["input"]


def test_embeddings():
    response = client.embeddings.create(model="demo", input=["one", "two"])
    assert [e.index for e in response.data] == [0, 1]
    assert response.data[0].embedding


def test_models():
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["demo", "assistant"], names
    assert client.models.retrieve("demo").id == "demo"
    raises(openai.NotFoundError, lambda: client.models.retrieve("unknown"), "model_not_found")


def test_error_classes():
    def ask(model, **more):
        return lambda: client.chat.completions.create(model=model, messages=HELLO, **more)

    raises(openai.NotFoundError, ask("unknown"), "model_not_found")
    raises(openai.BadRequestError, ask("demo", max_tokens=-1))
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model=7, messages=HELLO), "invalid_model")
    raises(openai.RateLimitError, ask("limited"))
    error = raises(openai.RateLimitError, ask("full"), "queue_full")
    assert int(error.response.headers["retry-after-ms"]) > 0
    assert error.request_id


def test_death_mid_stream():
    stream = client.chat.completions.create(model="dying", messages=HELLO, stream=True)
    raises(openai.APIError, lambda: list(stream))


def test_leaving_mid_stream():
    with client.chat.completions.create(model="demo", messages=HELLO, max_tokens=400_000, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break


def test_leaving_before_the_first_byte():
    impatient = client.with_options(timeout=1)
    raises(openai.APITimeoutError, lambda: impatient.chat.completions.create(model="silent", messages=HELLO))


async def many_at_once():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=150) as aclient:

        async def one(number):
            prompt = [{"role": "user", "content": f"Number {number}"}]
            stream = await aclient.chat.completions.create(model="demo", messages=prompt, max_tokens=12, stream=True)
            return [chunk.choices[0].finish_reason async for chunk in stream][-1]

        assert await asyncio.gather(*map(one, range(32))) == ["length"] * 32


def test_many_at_once():
    asyncio.run(many_at_once())


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name, flush=True)
