// The Vercel AI SDK, with its provider for OpenAI and the one for servers that are compatible.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { z } from "zod";
import { runScripts, steady } from "./scripts.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const forecast = z.object({ city: z.string(), degrees: z.number() });

const official = (s) => createOpenAI({ baseURL: s.baseURL, apiKey: "none", headers: s.headers });
const compatible = (s) => createOpenAICompatible({ name: "berth", baseURL: s.baseURL, apiKey: "none", headers: s.headers, includeUsage: true });

function asked(s, model, more) {
  return { model, prompt: s.prompt, maxRetries: s.retries, ...more };
}

function tools(s) {
  return { weather: tool({ description: "The weather", inputSchema: jsonSchema(s.parameters) }) };
}

async function generated(s, call) {
  const { text, finishReason, toolCalls, usage } = await generateText(call);
  s.outcome.response = steady({ text, finishReason, toolCalls, usage });
}

async function streamed(s, call) {
  s.outcome.parts = [];
  for await (const part of streamText({ ...call, onError: () => {} }).fullStream) {
    if (part.type === "error") throw part.error;
    s.outcome.parts.push(part.type);
    if (part.type === "text-delta") await s.receiveText(part.text);
    if (part.type === "tool-call" || part.type === "finish") (s.outcome.facts ??= []).push(steady(part));
  }
}

async function embedded(s, model) {
  s.outcome.embeddings = (await embedMany({ model, values: [s.prompt, "two"], maxRetries: s.retries })).embeddings;
}

/** Returns the operations of a provider's chat model. */
function chats(chat) {
  return {
    chat: (s) => generated(s, asked(s, chat(s))),
    stream: (s) => streamed(s, asked(s, chat(s))),
    tools: (s) => generated(s, asked(s, chat(s), { tools: tools(s) })),
    toolStream: (s) => streamed(s, asked(s, chat(s), { tools: tools(s) })),
    async structured(s) {
      const response = await generateText(asked(s, chat(s), { output: Output.object({ schema: forecast }) }));
      s.outcome.parsed = response.output;
    },
    async structuredStream(s) {
      const stream = streamText(asked(s, chat(s), { output: Output.object({ schema: forecast }) }));
      for await (const text of stream.textStream) await s.receiveText(text);
      s.outcome.parsed = await stream.output;
    },
    async disconnect(s) {
      const controller = new AbortController();
      const stream = streamText(asked(s, chat(s), { abortSignal: controller.signal, onError: () => {} }));
      for await (const part of stream.fullStream) {
        if (part.type === "text-delta") controller.abort();
        if (part.type === "abort") s.outcome.aborted = true;
      }
    },
  };
}

await runScripts("vercel", {
  ...chats((s) => official(s).chat(s.model)),
  floats: (s) => embedded(s, official(s).embedding(s.model)),
  response: (s) => generated(s, asked(s, official(s).responses(s.model))),
  responseStream: (s) => streamed(s, asked(s, official(s).responses(s.model))),
});

await runScripts("vercel compatible", {
  ...chats((s) => compatible(s)(s.model)),
  floats: (s) => embedded(s, compatible(s).embeddingModel(s.model)),
});
