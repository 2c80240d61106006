// Helpers for elements and numbers.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const el = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

// Sets a text only if it differs, so that selections stay and screen readers are silent.
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

// Shows `words` in the element `id`, or hides it if there are none.
export function problem(id, words) {
  const node = document.getElementById(id);
  node.hidden = !words;
  text(node, words ?? "");
}

const shown = new WeakMap();

// Replaces rows only if their content, identified by `key`, has changed. The focus stays.
export function rows(body, key, make) {
  if (shown.get(body) === key) return;
  shown.set(body, key);
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  body.replaceChildren(...make());
  if (focused) refocus(focused);
}

// Returns the focus to an element that was moved, or to the one that replaced it and has its id.
export function refocus(focused) {
  const node = focused.isConnected ? focused : document.getElementById(focused.id);
  if (node !== document.activeElement) node?.focus({ preventScroll: true });
}

// Calls `replace`, which removes a row. The focus moves from its menu to the menu of the row that takes its place.
export function keepPlace(body, replace) {
  const place = [...body.children].findIndex((row) => row.contains(document.activeElement));
  replace();
  if (place < 0 || body.contains(document.activeElement)) return;
  [...body.children].at(Math.min(place, body.children.length - 1))?.querySelector(".menu-button").focus();
}

// Calls `chosen` with the files that the user chooses in a field. Browsers report no change if the same file is chosen
// again, also if the file has changed, so the field forgets its files first.
export function onFiles(field, chosen) {
  field.addEventListener("click", () => { field.value = ""; });
  field.addEventListener("change", () => field.files.length && chosen([...field.files]));
}

// Returns true if a folder is dropped. Browsers list it among the files, and cannot read it.
export const hasFolder = ({ items }) => [...items].some((item) => item.webkitGetAsEntry?.()?.isDirectory);

// Writes a number with the largest unit of `units` in which it is at least 1 when it is rounded.
function withUnit(number, units, step) {
  let unit = 0;
  while (number >= step - 0.5 && unit < units.length - 1) [number, unit] = [number / step, unit + 1];
  return `${unit === 0 || number >= 99.95 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

export function bytes(count) {
  return withUnit(count, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
}

// Formats milliseconds with three significant digits.
export function ms(us) {
  const value = us / 1000;
  if (value >= 100) return String(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value.toFixed(value >= 1 ? 2 : 3);
}

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const hours = Math.floor(whole / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Formats a time that has passed in little space.
export function age(seconds) {
  return duration(seconds).split(" ").slice(0, 2).join(" ");
}

// Formats a time that has passed, without parts that are 0.
export function passed(seconds) {
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), rest = whole % 60;
  if (whole >= 3600) return duration(whole);
  return [minutes ? `${minutes} min` : "", rest || !minutes ? `${rest} s` : ""].filter(Boolean).join(" ");
}

export function count(value) {
  if (value >= 99999.5) return withUnit(value, ["", "k", "M", "G", "T"], 1000);
  if (value >= 10 || Number.isInteger(value)) return String(Math.round(value));
  return value < 0.1 ? String(Number(value.toPrecision(1))) : value.toFixed(1);
}

// Formats a number of cores, which a processor limit makes a fraction.
export function cores(value) {
  return `${Number(value.toFixed(2))} cores`;
}

// Shows `value` of `max` as a bar with text.
export function gauge(node, label, value, max, words) {
  if (!node.firstChild) {
    const track = el("div", { class: "track", "aria-hidden": "true" }, el("i"));
    node.append(el("div", { class: "gauge" }, el("p", {}, el("span"), el("span")), track));
  }
  const [name, amount] = node.querySelectorAll("span");
  text(name, label);
  text(amount, words);
  node.querySelector("i").style.width = `${max > 0 ? Math.min(100, (100 * value) / max) : 0}%`;
}

// Formats a share of 1.
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.01) return "<0.01 %";
  return value >= 10 ? `${Math.round(value)} %` : `${value.toFixed(value >= 1 ? 1 : 2)} %`;
}

// Returns the time zone of this browser at a time, such as UTC+5:30.
export function zone(milliseconds) {
  const minutes = -new Date(milliseconds).getTimezoneOffset(), size = Math.abs(minutes);
  if (size === 0) return "UTC";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}`;
}

// Formats a time of day; with the day if it is not today.
export function clock(milliseconds, seconds = true) {
  const time = new Date(milliseconds), today = time.toDateString() === new Date().toDateString();
  const words = time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) });
  return today ? words : `${time.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${words}`;
}
