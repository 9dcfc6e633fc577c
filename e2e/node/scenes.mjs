// What the clients for Node.js have in common: they play scenes and print what came of each, a JSON object a line.
//
// Usage: node CLIENT.mjs BASE_URL HEARD_URL SCENES
//
// A scene is {name, do, hearing, retries}. Where the server is to know, HEARD_URL is fetched for every text that has arrived.

import { readFileSync } from "node:fs";

const [baseURL, heardURL, file] = process.argv.slice(2);
const model = "acme/demo";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

/** Plays all scenes that the way of a client can do: it has a function for each. */
export async function play(way, acts) {
  const headers = { "X-Way": way };
  for (const scene of JSON.parse(readFileSync(file))) {
    const act = acts[scene.do];
    if (!act) continue;
    const outcome = {};
    const hear = async (text) => {
      outcome.text = (outcome.text ?? "") + text;
      if (text && scene.hearing) await (await fetch(heardURL)).text();
    };
    try {
      await act({ baseURL, model, headers, parameters, outcome, hear, prompt: `|${scene.name}|`, retries: scene.retries });
    } catch (error) {
      outcome.error = told(error);
    }
    console.log(JSON.stringify({ way, scene: scene.name, outcome }));
  }
}

const kept = [
  "retry-after",
  "retry-after-ms",
  "x-should-retry",
  "x-ratelimit-remaining-requests",
  "www-authenticate",
  "openai-processing-ms",
  "content-type",
];

/** What a user can learn from an error. */
export function told(error) {
  const said = { class: error?.name === "Error" ? error.constructor.name : error?.name, message: error?.message };
  for (const name of ["status", "statusCode", "code", "type", "param", "lc_error_code", "responseBody", "isRetryable", "reason"]) {
    if (error?.[name] !== undefined) said[name] = error[name];
  }
  const headers = error?.headers ?? error?.responseHeaders;
  if (headers) {
    const get = (name) => (headers.get ? headers.get(name) : headers[name]) ?? null;
    said.headers = Object.fromEntries(kept.map((name) => [name, get(name)]));
    said.request_id = Boolean(get("x-request-id"));
  }
  if (error?.lastError) said.last = told(error.lastError);
  return said;
}

/** A value without what differs from one time to the next. */
export function steady(value) {
  return JSON.parse(JSON.stringify(value, (key, v) => (["timestamp", "headers"].includes(key) ? undefined : v)));
}
