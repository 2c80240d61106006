// Requests of the vector pages to `/collections`.

import { asWritten, fromJson, getJson, getText, request, sendExact, sendForText, sendJson, toJson } from "./page-api.js";

export const path = (name, rest = "") => `/collections/${encodeURIComponent(name)}${rest}`;

export const collections = async () => (await getJson("/collections")).result.collections.map(({ name }) => name);
export const describe = async (name) => (await getJson(path(name))).result;
export const segments = async (name) => (await getJson(path(name, "/segments"))).result;
export const create = (name, vectors) => sendJson("PUT", path(name), { vectors });
export const drop = (name) => request("DELETE", path(name));
// Reads a list of points. The numbers of their payloads are for `toJson` only.
const listed = (words) => {
  const { result } = fromJson(words), written = asWritten(words).result.points;
  return { ...result, points: result.points.map((point, at) => ({ ...point, payload: written[at].payload })) };
};
export const scroll = async (name, wanted) => listed(await sendForText("POST", path(name, "/points/scroll"), wanted));
export const query = async (name, wanted) => listed(await sendForText("POST", path(name, "/points/query"), wanted));
export const count = async (name, filter) => (await sendExact("POST", path(name, "/points/count"), filter ? { filter } : {})).result;
export const facet = async (name, wanted) => (await sendExact("POST", path(name, "/facet"), wanted)).result;
// The numbers of the payload are for `toJson` only.
export const point = async (name, id) => {
  const words = await getText(path(name, `/points/${encodeURIComponent(id)}`));
  return { ...fromJson(words).result, payload: asWritten(words).result.payload };
};
// Takes the payload as JSON and sends these words, so that no number changes.
export const setPayload = (name, id, payload) =>
  request("PUT", path(name, "/points/payload"), { body: `{"points": [${toJson(id)}], "payload": ${payload}}`, type: "application/json" });
export const dropPoint = (name, id) => sendExact("POST", path(name, "/points/delete"), { points: [id] });

// Returns the name on the page for images of each collection of images. Without images, none.
export async function imageCollections() {
  try {
    const { collections } = await getJson("/v1/images");
    return new Map(collections.flatMap(({ kind, name, collection }) => (kind ? [[name, name], [collection, name]] : [])));
  } catch {
    return new Map();
  }
}

// Returns the first lines of a Python example, which connect to the server at `origin`.
export function clientCode(origin, isLocked) {
  const { port, protocol } = new URL(origin), given = [JSON.stringify(origin)];
  // The client takes Qdrant's port for an address without one.
  if (!port) given.push(`port=${protocol.startsWith("https") ? 443 : 80}`);
  if (isLocked) given.push('api_key=os.environ["MILLPOND_API_KEY"]');
  return ["# pip install qdrant-client", ...(isLocked ? ["import os", ""] : []), "from qdrant_client import QdrantClient, models",
    `client = QdrantClient(${given.join(", ")})`].join("\n");
}

// Returns {name, size, distance} of the vector of a described collection.
export function vectorOf({ config }) {
  const { vectors } = config.params;
  if (typeof vectors.size === "number") return { name: "", ...vectors };
  const [name, only] = Object.entries(vectors)[0];
  return { name, ...only };
}
