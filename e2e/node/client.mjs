// Uses berth with the Node.js SDKs and checks the results.
//
// Usage: node client.mjs BASE_URL
//
// The server has the models demo (alias assistant), full (the queue is full), dying (streams are
// aborted), limited (the engine responds 429) and silent (the engine never responds).

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [baseURL] = process.argv.slice(2);
const messages = [{ role: "user", content: "Hello" }];
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 150_000 });
const provider = createOpenAI({ baseURL, apiKey: "none" });
const langchain = (model, more) =>
  new ChatOpenAI({ model, apiKey: "none", maxRetries: 0, timeout: 150_000, configuration: { baseURL }, ...more });

/** Refused requests with the expected error of the official SDK. */
const refusals = [
  { model: "unknown", kind: OpenAI.NotFoundError, status: 404, code: "model_not_found" },
  { model: "demo", max_tokens: -1, kind: OpenAI.BadRequestError, status: 400 },
  { model: "limited", kind: OpenAI.RateLimitError, status: 429 },
  { model: "full", kind: OpenAI.RateLimitError, status: 429, code: "queue_full", retryable: true },
];

const others = refusals.filter(({ max_tokens }) => !max_tokens); // the other SDKs reject invalid parameters themselves

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  assert.fail("the request was not refused");
}

const tests = {
  async "the official SDK"() {
    const whole = await client.chat.completions.create({ model: "assistant", messages, max_tokens: 9 });
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: "demo", messages, max_tokens: 9, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(text, whole.choices[0].message.content);
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names.slice(0, 2), ["demo", "assistant"]);
    for (const { kind, status, code, retryable, ...request } of refusals) {
      const error = await refused(() => client.chat.completions.create({ messages, ...request }));
      assert.equal(error.constructor, kind);
      assert.equal(error.status, status);
      if (code) assert.equal(error.code, code);
      if (retryable) assert.ok(Number(error.headers.get("retry-after-ms")) > 0);
      assert.ok(error.requestID);
    }
  },
  async "the Vercel AI SDK"() {
    const { text } = await generateText({ model: provider.chat("demo"), messages, maxOutputTokens: 9 });
    assert.ok(text);
    for (const { status, model } of others) {
      const error = await refused(() => generateText({ model: provider.chat(model), messages, maxRetries: 0 }));
      assert.equal(error.statusCode, status);
      assert.ok(JSON.parse(error.responseBody).error.message);
    }
    const parts = [];
    const dying = streamText({ model: provider.chat("dying"), messages, onError: () => parts.push("error") });
    try {
      for await (const part of dying.fullStream) parts.push(part.type);
    } catch {
      parts.push("error");
    }
    assert.ok(parts.includes("text-delta") && parts.includes("error") && !parts.includes("finish"), `${parts}`);
  },
  async LangChain() {
    assert.ok((await langchain("demo", { maxTokens: 9 }).invoke("Hello")).content);
    for (const { status, model } of others) {
      const error = await refused(() => langchain(model).invoke("Hello"));
      assert.equal(error.status, status, String(error));
    }
  },
  async "an abort mid-stream"() {
    let chunks = 0;
    const error = await refused(async () => {
      for await (const _ of await client.chat.completions.create({ model: "dying", messages, stream: true })) chunks++;
    });
    assert.ok(error instanceof OpenAI.APIError && chunks > 0, String(error));
  },
  async "disconnect mid-stream"() {
    for await (const chunk of await client.chat.completions.create({ model: "demo", messages, max_tokens: 400_000, stream: true })) {
      if (chunk.choices[0]?.delta.content) break;
    }
  },
  async "disconnect before the first byte"() {
    const error = await refused(() => client.chat.completions.create({ model: "silent", messages }, { timeout: 1000 }));
    assert.equal(error.constructor, OpenAI.APIConnectionTimeoutError);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log("ok", name);
}
