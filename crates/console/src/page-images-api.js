// Requests of the page to `/v1/images`.

import { Refused, getJson, request } from "./page-api.js";

// Longest line of a response in characters: a group of duplicates has all its images.
const LINE_MAX = 2 ** 24;
// Most tries of an upload that a busy server refuses, or a server that is started again does not answer.
const TRIES_MAX = 6;
const RETRIED = [0, 429, 503];
const WAIT_MS = 500;

// Returns the path of a collection, with the parameters that have a value.
export function path(collection, rest = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const words = new URLSearchParams(given).toString();
  return `/v1/images${collection === null ? "" : `/${encodeURIComponent(collection)}`}${rest}${words ? `?${words}` : ""}`;
}

export const get = getJson;
export const remove = (where) => request("DELETE", where);
export const post = async (where, body, stop) =>
  (await request("POST", where, body instanceof Blob ? { body, type: "application/octet-stream", stop } : { body: JSON.stringify(body), type: "application/json", stop })).json();

// Waits. Throws `AbortError` after `stop`.
function pause(ms, stop) {
  stop?.throwIfAborted();
  return new Promise((resume, fail) => {
    const end = () => {
      clearTimeout(timer);
      fail(stop.reason);
    };
    // Thousands of files share one signal, so each pause removes its listener.
    const timer = setTimeout(() => {
      stop?.removeEventListener("abort", end);
      resume();
    }, ms);
    stop?.addEventListener("abort", end, { once: true });
  });
}

// Sends a file, and retries while the server is busy or started again. An image that arrived is not added twice.
async function send(where, file, type, stop) {
  for (let tries = 1; ; tries++) {
    try {
      return await request("PUT", where, { body: file, type, stop });
    } catch (error) {
      if (!RETRIED.includes(error.status) || tries === TRIES_MAX) throw error;
      await pause(error.wait || WAIT_MS * 2 ** tries, stop);
    }
  }
}

export const put = async (where, file, stop) => (await send(where, file, "application/octet-stream", stop)).json();

// Calls `each` with every line of a response of lines of JSON.
export async function readLines(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "") + (done ? "\n" : "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) each(JSON.parse(line));
    if (done) return;
    if (rest.length > LINE_MAX) throw new Refused(500, "the server sent a line without end");
  }
}

// Sends a zip. Calls `each` with the result of each image.
export async function putZip(where, file, each, stop) {
  let ended = false;
  await readLines(await send(where, file, "application/zip", stop), (entry) => {
    ended ||= "summary" in entry;
    if (entry.error && !entry.status) throw new Refused(500, entry.error);
    each(entry);
  });
  if (!ended) throw new Refused(500, "the answer ended early; the images that are listed as added are in the collection");
}
