// The login of a page: shows whose key the browser uses, logs out, and leads to the login once the session has ended.
// A page includes this file once. It adds a button to the page's first <nav>.

import { toLogin } from "./page-api.js";
import { message } from "./page-shell.js";

const CHECK_MS = 60_000;

async function read() {
  const answer = await fetch("/session", { headers: { accept: "application/json" } });
  return answer.ok ? answer.json() : { keys: false };
}

async function logOut() {
  try {
    // The redirect to the login is opaque.
    const answer = await fetch("/logout", { method: "POST", redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.ok) location.assign("/login");
    else message(`You are not logged out: the server answered ${answer.status}.`, true);
  } catch {
    message("You are not logged out: the server did not answer. Is it running?", true);
  }
}

function show(session) {
  const nav = document.querySelector("nav");
  if (!nav || !session.name) return;
  const button = document.createElement("button");
  button.type = "button";
  button.id = "log-out";
  button.textContent = "log out";
  button.title = `Logged in with the key ${session.name} (${session.role})`;
  button.addEventListener("click", logOut);
  nav.append(button);
}

async function check() {
  if (document.visibilityState !== "visible") return;
  try {
    const session = await read();
    if (session.keys && !session.name) toLogin();
  } catch {
    // The server does not answer; the page shows that itself.
  }
}

const first = await read().catch(() => ({ keys: false }));
show(first);
if (first.name) {
  // A page that was opened with a key in a header has no session to watch.
  setInterval(check, CHECK_MS);
  document.addEventListener("visibilitychange", check);
}
