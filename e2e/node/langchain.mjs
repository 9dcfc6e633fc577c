// LangChain for JavaScript.

import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { runScripts } from "./scripts.mjs";

const forecast = z.object({ city: z.string(), degrees: z.number() });

function options({ baseURL, model, headers, retries }, more) {
  return { model, apiKey: "none", maxRetries: retries ?? 2, timeout: 100_000, configuration: { baseURL, defaultHeaders: headers }, ...more };
}

const chat = (s, more) => new ChatOpenAI(options(s, more));
const tools = (s) => [{ type: "function", function: { name: "weather", parameters: s.parameters } }];

function messageFields({ content, tool_calls, invalid_tool_calls, usage_metadata, response_metadata, id }) {
  return { content, tool_calls, invalid_tool_calls, usage_metadata, id, finish_reason: response_metadata?.finish_reason };
}

async function stream(s, model) {
  let all;
  for await (const chunk of await model.stream(s.prompt)) {
    all = all ? all.concat(chunk) : chunk;
    await s.receiveText(typeof chunk.content === "string" ? chunk.content : chunk.content.map((part) => part.text ?? "").join(""));
  }
  s.outcome.response = all && messageFields(all);
}

await runScripts("langchain", {
  async chat(s) {
    s.outcome.response = messageFields(await chat(s).invoke(s.prompt));
  },
  stream: (s) => stream(s, chat(s)),
  async tools(s) {
    s.outcome.response = messageFields(await chat(s).bindTools(tools(s)).invoke(s.prompt));
  },
  toolStream: (s) => stream(s, chat(s).bindTools(tools(s))),
  async structured(s) {
    s.outcome.parsed = await chat(s).withStructuredOutput(forecast, { method: "jsonSchema" }).invoke(s.prompt);
  },
  async embeddings(s) {
    s.outcome.vectors = await new OpenAIEmbeddings(options(s, { encodingFormat: "base64" })).embedDocuments([s.prompt, "two"]);
  },
  async floats(s) {
    s.outcome.vectors = await new OpenAIEmbeddings(options(s, { encodingFormat: "float" })).embedDocuments([s.prompt, "two"]);
  },
  async response(s) {
    s.outcome.response = messageFields(await chat(s, { useResponsesApi: true }).invoke(s.prompt));
  },
  responseStream: (s) => stream(s, chat(s, { useResponsesApi: true })),
  async disconnect(s) {
    const controller = new AbortController();
    for await (const chunk of await chat(s).stream(s.prompt, { signal: controller.signal })) {
      if (chunk.content) controller.abort();
    }
  },
});
