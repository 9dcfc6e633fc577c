// The official Node.js SDK.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { runScripts } from "./scripts.mjs";

const format = zodResponseFormat(z.object({ city: z.string(), degrees: z.number() }), "forecast");

function client({ baseURL, headers, retries }) {
  return new OpenAI({ baseURL, apiKey: "none", timeout: 100_000, defaultHeaders: headers, maxRetries: retries });
}

function asked({ model, prompt }, more) {
  return { model, messages: [{ role: "user", content: prompt }], ...more };
}

function tools({ parameters }) {
  return [{ type: "function", function: { name: "weather", parameters, strict: true } }];
}

async function stream(s, more) {
  const chunks = await client(s).chat.completions.create(asked(s, { stream: true, ...more }));
  s.outcome.chunks = [];
  for await (const chunk of chunks) {
    s.outcome.chunks.push(chunk);
    await s.receiveText((chunk.choices ?? []).map((choice) => choice.delta.content ?? "").join(""));
  }
}

async function helped(s, more) {
  const runner = client(s).chat.completions.stream(asked(s, more));
  for await (const chunk of runner) {
    await s.receiveText((chunk.choices ?? []).map((choice) => choice.delta.content ?? "").join(""));
  }
  s.outcome.final = await runner.finalChatCompletion();
}

await runScripts("node", {
  async models(s) {
    s.outcome.ids = [];
    for await (const model of client(s).models.list()) s.outcome.ids.push(model.id);
  },
  async model(s) {
    s.outcome.id = (await client(s).models.retrieve(s.model)).id;
  },
  async chat(s) {
    const response = await client(s).chat.completions.create(asked(s));
    s.outcome.response = response;
    s.outcome.id = Boolean(response._request_id);
  },
  stream: (s) => stream(s),
  async tools(s) {
    s.outcome.response = await client(s).chat.completions.create(asked(s, { tools: tools(s) }));
  },
  toolStream: (s) => stream(s, { tools: tools(s) }),
  async structured(s) {
    const response = await client(s).chat.completions.parse(asked(s, { response_format: format }));
    s.outcome.parsed = response.choices[0].message.parsed;
  },
  async embeddings(s) {
    s.outcome.response = await client(s).embeddings.create({ model: s.model, input: [s.prompt, "two"] });
  },
  async floats(s) {
    s.outcome.response = await client(s).embeddings.create({ model: s.model, input: [s.prompt, "two"], encoding_format: "float" });
  },
  async response(s) {
    const response = await client(s).responses.create({ model: s.model, input: s.prompt });
    s.outcome.response = response;
    s.outcome.text = response.output_text;
  },
  async responseStream(s) {
    s.outcome.events = [];
    for await (const event of await client(s).responses.create({ model: s.model, input: s.prompt, stream: true })) {
      s.outcome.events.push(event);
    }
  },
  async disconnect(s) {
    for await (const chunk of await client(s).chat.completions.create(asked(s, { stream: true }))) {
      if (!chunk.choices[0].delta.content) continue;
      s.outcome.text = chunk.choices[0].delta.content;
      break;
    }
  },
});

await runScripts("node helper", {
  stream: (s) => helped(s),
  toolStream: (s) => helped(s, { tools: tools(s) }),
  structuredStream: (s) => helped(s, { response_format: format }),
  async responseStream(s) {
    s.outcome.events = [];
    const stream = client(s).responses.stream({ model: s.model, input: s.prompt });
    for await (const event of stream) s.outcome.events.push(event.type);
    s.outcome.text = (await stream.finalResponse()).output_text;
  },
  async disconnect(s) {
    const runner = client(s).chat.completions.stream(asked(s));
    for await (const chunk of runner) if (chunk.choices[0].delta.content) break;
    runner.abort();
  },
});
