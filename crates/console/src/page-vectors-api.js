// Requests of the vector pages to `/collections`.

import { getExact, getJson, request, sendExact, sendJson } from "./page-api.js";

export const path = (name, rest = "") => `/collections/${encodeURIComponent(name)}${rest}`;

export const collections = async () => (await getJson("/collections")).result.collections.map(({ name }) => name);
export const describe = async (name) => (await getJson(path(name))).result;
export const segments = async (name) => (await getJson(path(name, "/segments"))).result;
export const create = (name, vectors) => sendJson("PUT", path(name), { vectors });
export const drop = (name) => request("DELETE", path(name));
export const scroll = async (name, wanted) => (await sendExact("POST", path(name, "/points/scroll"), wanted)).result;
export const query = async (name, wanted) => (await sendExact("POST", path(name, "/points/query"), wanted)).result;
export const count = async (name, filter) => (await sendExact("POST", path(name, "/points/count"), filter ? { filter } : {})).result;
export const facet = async (name, wanted) => (await sendExact("POST", path(name, "/facet"), wanted)).result;
export const point = async (name, id) => (await getExact(path(name, `/points/${encodeURIComponent(id)}`))).result;
export const setPayload = (name, id, payload) => sendExact("PUT", path(name, "/points/payload"), { points: [id], payload });
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

// Returns {name, size, distance} of the vector of a described collection.
export function vectorOf({ config }) {
  const { vectors } = config.params;
  if (typeof vectors.size === "number") return { name: "", ...vectors };
  const [name, only] = Object.entries(vectors)[0];
  return { name, ...only };
}
