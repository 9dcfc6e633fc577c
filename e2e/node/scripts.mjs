// Common code of the Node.js clients: run scripts and print the outcome of each, one JSON object per line.
//
// Usage: node CLIENT.mjs BASE_URL ACK_URL SCRIPTS
//
// A script is {name, operation, acknowledge, retries}. If acknowledge is true, ACK_URL is fetched for every received text.

import { readFileSync } from "node:fs";

const [baseURL, ackURL, file] = process.argv.slice(2);
const model = "acme/demo";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

/** Runs all scripts whose operation a variant of a client supports. */
export async function runScripts(variant, operations) {
  const headers = { "X-Variant": variant };
  for (const script of JSON.parse(readFileSync(file))) {
    const operation = operations[script.operation];
    if (!operation) continue;
    const outcome = {};
    const receiveText = async (text) => {
      outcome.text = (outcome.text ?? "") + text;
      if (text && script.acknowledge) await (await fetch(ackURL)).text();
    };
    try {
      await operation({ baseURL, model, headers, parameters, outcome, receiveText, prompt: `|${script.name}|`, retries: script.retries });
    } catch (error) {
      outcome.error = describe(error);
    }
    console.log(JSON.stringify({ variant, script: script.name, outcome }));
  }
}

const headerNames = [
  "retry-after",
  "retry-after-ms",
  "x-should-retry",
  "x-ratelimit-remaining-requests",
  "www-authenticate",
  "openai-processing-ms",
  "content-type",
];

/** Returns the information that a user gets from an error. */
export function describe(error) {
  const fields = { class: error?.name === "Error" ? error.constructor.name : error?.name, message: error?.message };
  for (const name of ["status", "statusCode", "code", "type", "param", "lc_error_code", "responseBody", "isRetryable", "reason"]) {
    if (error?.[name] !== undefined) fields[name] = error[name];
  }
  const headers = error?.headers ?? error?.responseHeaders;
  if (headers) {
    const get = (name) => (headers.get ? headers.get(name) : headers[name]) ?? null;
    fields.headers = Object.fromEntries(headerNames.map((name) => [name, get(name)]));
    fields.request_id = Boolean(get("x-request-id"));
  }
  if (error?.lastError) fields.last = describe(error.lastError);
  return fields;
}

/** Returns a copy of the value without fields that differ between runs. */
export function steady(value) {
  return JSON.parse(JSON.stringify(value, (key, v) => (["timestamp", "headers"].includes(key) ? undefined : v)));
}
