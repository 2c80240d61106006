// Requests of the pages to their own server. The cookie of a login goes with them.

// An answer that is an error. `status` is 0 if there was no answer.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Time in which a page asks for the login once: each further request for it would begin its load again.
const LEAVING_MS = 10_000;
let left = -Infinity;

// Leads to the login, and back to this page afterwards.
export function toLogin() {
  if (performance.now() - left < LEAVING_MS) return;
  left = performance.now();
  // The browser keeps the fragment through the login.
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}${location.hash}`);
}

// Returns the error of a request with this body that got no answer. Browsers send no file that was changed or removed
// after it was chosen.
export async function unanswered(body) {
  try {
    // A file may have gigabytes, so only its first part is read. `slice` would hide an error: a missing file has size 0.
    const reader = body instanceof File ? body.stream().getReader() : null;
    await reader?.read();
    await reader?.cancel();
  } catch {
    return new Error(`The browser cannot read ${body.name}. If it was changed or moved, choose it again.`);
  }
  return new Refused(0, "The server did not answer. Is it running?");
}

// Sends a request. Throws `Refused` with the server's own words, and `AbortError` after `stop`. Leads to the login if
// the session has ended.
export async function request(method, where, { body, type, headers = {}, stop } = {}) {
  const sent = { ...headers };
  if (type) sent["Content-Type"] = type;
  let answer;
  try {
    answer = await fetch(where, { method, body, headers: sent, signal: stop });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw await unanswered(body);
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  // Qdrant's envelope has the words in `status`.
  const refused = new Refused(answer.status, said.error ?? said.status?.error ?? `the server answered ${answer.status}`);
  if (answer.status === 401) toLogin();
  refused.wait = Number(answer.headers.get("retry-after")) * 1000;
  throw refused;
}

// True if whole numbers beyond those of JavaScript, such as ids of 64 bits, can be read and written with all digits.
export const IS_EXACT = typeof JSON.rawJSON === "function";
const isLong = (value, source) => typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source);

// Reads JSON. Such numbers become BigInt.
export const fromJson = (words) => JSON.parse(words, IS_EXACT && /\d{16}/.test(words) ? (_, value, { source }) => (isLong(value, source) ? BigInt(source) : value) : undefined);

// Reads JSON to show or edit it: `toJson` writes each number as it was, such as 1.0, which JavaScript writes as 1.
export const asWritten = (words) => JSON.parse(words, IS_EXACT ? (_, value, { source }) => (typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value) : undefined);

// True for a number of `asWritten` that JavaScript would write in another way.
export const isAsWritten = (value) => IS_EXACT && JSON.isRawJSON(value);

// Writes JSON, also of BigInt.
export const toJson = (value, space) => JSON.stringify(value, IS_EXACT ? (_, part) => (typeof part === "bigint" ? JSON.rawJSON(String(part)) : part) : undefined, space);

// Reads JSON to show it. Such numbers become texts, since versions can be times in nanoseconds.
export const longAsText = (words) => JSON.parse(words, IS_EXACT && /\d{16}/.test(words) ? (_, value, { source }) => (isLong(value, source) ? source : value) : undefined);

// Compares two versions, which can be numbers or texts of `longAsText`, for a sort.
export const compareVersions = (one, other) => Number(BigInt(one) - BigInt(other));

// Returns a version for `toJson`, which writes all of its digits.
export const exactVersion = (version) => (IS_EXACT && /^\d{16,}$/.test(version) ? BigInt(version) : Number(version));

export const getJson = async (where, stop) => longAsText(await (await request("GET", where, { stop })).text());
export const sendJson = async (method, where, value, stop) =>
  (await request(method, where, { body: JSON.stringify(value), type: "application/json", stop })).json();

// As `getJson` and `sendJson`, for answers with numbers of 64 bits: as text, and read by `fromJson`.
export const getText = async (where) => (await request("GET", where)).text();
export const sendForText = async (method, where, value) => (await request(method, where, { body: toJson(value), type: "application/json" })).text();
export const sendExact = async (method, where, value) => fromJson(await sendForText(method, where, value));

// Returns true if this server answers 401 to requests without a key or a session.
export async function needsKey(where) {
  try {
    return (await fetch(where, { credentials: "omit" })).status === 401;
  } catch {
    return false;
  }
}

// Returns what to tell the user about an error.
export const words = (error) => String(error.message ?? error);
