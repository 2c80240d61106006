// The rollout of one model: its state, and the form that starts a rollout or changes its share.

import { compareVersions, exactVersion, getJson, longAsText, request, toJson, words } from "./page-api.js";
import { count, el, passed, percent, rows, text } from "./page-dom.js";
import { ask, message } from "./page-shell.js";

// Time between two reads of the rollout, and of the rights of this browser.
const READ_MS = 3000;
const RIGHTS_READ_MS = 60_000;
// Share in the form if the model's settings give none.
const SHARE = 0.05;
// State of the chip, and words, for each state of a rollout.
const STATES = { running: ["loading", "running"], promoted: ["ready", "promoted"], rolled_back: ["failed", "rolled back"] };

const shown = (value, format) => (value === undefined || value === null ? "–" : format(value));
const sentence = (said) => `${said[0].toUpperCase()}${said.slice(1)}.`;

// Says why the server refuses changes of this browser; null if it accepts them.
function refusal({ name, role, admin_refused: refused }) {
  if (!refused) return null;
  if (name && role !== "admin") return `The key ${name} has the role ${role}. To change a rollout, log out and log in with a key of the role admin.`;
  return sentence(refused);
}

// Says what ends a rollout of this kind.
function ending({ promote, rollback }, kind) {
  const { errors, latency, drift } = rollback, [end, value] = promote.split(":"), copies = kind === "shadow";
  const ends = {
    requests: () => `after ${count(Number(value))} of its requests`, time: () => `after ${passed(parseFloat(value))}`, hand: () => "when an administrator requests it",
  };
  const limits = [
    errors === null ? "" : `it fails ${percent(errors)} more requests than the stable version`,
    latency === null || copies ? "" : `its p99 is ${latency} times that of the stable version`,
    drift === null ? "" : copies ? `${percent(drift)} of its answers differ` : `the distributions of its outputs differ by ${drift}`,
  ].filter(Boolean);
  const withdrawn = limits.length ? `It is withdrawn if ${limits.join(", or if ")}.` : "No limit withdraws it.";
  return `The new version is promoted ${ends[end]()}. ${withdrawn} To change this, edit the section [rollout] of the model's settings.`;
}

export class RolloutView {
  constructor(panel, name, actions) {
    Object.assign(this, { panel, name, actions, refused: null, rights: -Infinity, turn: 0, busy: false, filled: null, buttons: new Map() });
    this.part = (selector) => panel.querySelector(selector);
    this.path = `/v2/models/${encodeURIComponent(name)}/rollout`;
    this.refresh();
    this.part("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.part("#rollout-kind").addEventListener("input", () => this.ending());
  }

  // The next `show` reads the state.
  refresh() {
    this.read = -Infinity;
  }

  // Reads the state at most every few seconds, and draws it.
  async show(model, server) {
    this.model = model;
    if (!server.calls.rollout || performance.now() - this.read < READ_MS) return;
    this.read = performance.now();
    this.turn += 1;
    const turn = this.turn;
    try {
      await this.readRights();
      const found = await getJson(this.path);
      // An answer to the form is newer.
      if (turn === this.turn) this.draw(found);
    } catch {
      // The header says that the server does not answer.
    }
  }

  async readRights() {
    if (performance.now() - this.rights < RIGHTS_READ_MS) return;
    this.refused = refusal(await getJson("/session"));
    this.rights = performance.now();
  }

  draw(found) {
    this.found = found;
    this.panel.hidden = false;
    rows(this.part(".rollout-state"), JSON.stringify([found, this.refused]), () => this.state());
    this.form();
  }

  state() {
    const { found } = this, running = found.state === "running";
    if (found.state === "none") return [el("p", { class: "note" }, "No rollout has run since the server started.")];
    const [state, name] = STATES[found.state] ?? ["none", found.state];
    // A promoted version is the stable one now. The figures are those of the version before it. A version that was
    // withdrawn without a rollout has no figures, and its entry has that version twice.
    const [last] = found.history, ended = running || last?.stable === last?.candidate ? null : last;
    const stable = ended?.stable ?? found.stable;
    const share = found.shadow ? `${percent(found.shadow)} of requests copied` : `${percent(found.traffic)} of requests`;
    const row = (label, of, format) => el("tr", {}, el("th", { scope: "row" }, label),
      ...["stable", "candidate"].map((side) => el("td", { class: "number" }, shown(of?.[side], format))));
    const drift = found.shadow ? `Answers that differ: ${shown(found.drift, percent)}` : `Drift of the outputs: ${shown(found.drift, (value) => value.toFixed(4))}`;
    return [
      el("p", { class: "chips" }, el("span", { class: "chip", "data-state": state }, name),
        el("span", { class: "chip plain" }, `v${stable} → v${found.candidate}`), ...(running ? [el("span", { class: "chip plain" }, share)] : [])),
      ...(running ? [el("p", { class: "buttons" }, this.button("Promote", "promote"), this.button("Roll back", "rollback"))] : []),
      ...(found.reason ? [el("p", { class: found.state === "rolled_back" ? "problem" : "note" }, found.reason)] : []),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), el("th", { scope: "col", class: "number" }, `stable v${stable}`),
        el("th", { scope: "col", class: "number" }, `candidate v${found.candidate}`))),
        el("tbody", {}, row("requests", found.requests, count), row("errors", found.errors, count), row("p99 of runs, ms", found.p99_ms, (value) => value.toFixed(2)))),
      ...(found.overflow ? [el("p", { class: "note" }, `Requests that stable answered, because the candidate is too slow: ${count(found.overflow)}`)] : []),
      ...(found.drift === null ? [] : [el("p", { class: "note" }, drift)]),
    ];
  }

  // The figures change every few seconds. The same button keeps the focus, also while its question is open.
  button(label, action) {
    const key = `${action} ${this.found.candidate} ${this.refused}`;
    if (!this.buttons.has(key)) this.buttons.set(key, this.made(label, action));
    return this.buttons.get(key);
  }

  made(label, action) {
    const { candidate } = this.found, locked = this.refused ? { disabled: "", "aria-describedby": "rollout-locked" } : {};
    const node = el("button", { class: "small", "aria-label": `${label} version ${candidate}`, ...locked }, `${label}…`);
    node.addEventListener("click", () => this.actions.rollout(action, candidate));
    return node;
  }

  // Shows the form for the state: it starts a rollout, or changes the share of the running one.
  form() {
    const { found } = this, running = found.state === "running";
    const locked = this.refused ?? (found.stable === null ? "No version serves, so there is none to compare with. Load a version first." : null);
    this.part("#rollout-locked").hidden = !locked;
    text(this.part("#rollout-locked"), locked ?? "");
    this.part("fieldset").disabled = Boolean(locked);
    text(this.part("summary"), running ? "Change the share" : "Start a rollout");
    for (const selector of [".rollout-version", "#rollout-hint"]) this.part(selector).hidden = running;
    const go = this.part("fieldset button");
    go.setAttribute("aria-disabled", String(this.busy));
    text(go, this.busy ? "Working…" : running ? "Change…" : "Start…");
    const filled = running ? `version ${found.candidate}` : "none runs";
    if (this.filled !== filled) this.fill(running ? found : found.defaults);
    this.filled = filled;
    this.ending();
  }

  // Fills the form with the shares of the running rollout, or of the model's settings. Input of the user stays until a
  // rollout starts or ends.
  fill({ traffic, shadow }) {
    const newer = this.model.versions.map(({ version }) => version).filter((version) => compareVersions(version, this.found.stable ?? 0) > 0);
    this.part("#rollout-version").value = newer.sort(compareVersions).at(-1) ?? "";
    this.part("#rollout-kind").value = shadow ? "shadow" : "traffic";
    this.part("#rollout-share").value = shadow || traffic || SHARE;
    this.problem("");
  }

  ending() {
    if (this.found) text(this.part(".ending"), ending(this.found.defaults, this.part("#rollout-kind").value));
  }

  problem(said, field = null) {
    this.part("#rollout-problem").hidden = !said;
    text(this.part("#rollout-problem"), said);
    if (field) this.part(field).focus();
  }

  async submit() {
    if (this.busy || this.part("fieldset").disabled) return;
    const running = this.found.state === "running", kind = this.part("#rollout-kind").value;
    const share = Number(this.part("#rollout-share").value), version = this.part("#rollout-version").value;
    this.problem("");
    if (!running && !version) return this.problem("Enter the version to roll out.", "#rollout-version");
    if (!(share > 0 && share <= 1)) return this.problem("Enter a share above 0, at most 1. For 5 % of the requests, enter 0.05.", "#rollout-share");
    const number = running ? this.found.candidate : version;
    const gets = kind === "traffic" ? `It answers ${percent(share)} of the requests that name no version.`
      : `It gets copies of ${percent(share)} of the requests that name no version. Clients get the answers of the stable version only.`;
    const question = running ? { title: `Change the share of version ${number} of ${this.name}?`, words: gets, yes: "Change" }
      : { title: `Start a rollout of version ${number} of ${this.name}?`, words: `Version ${number} is loaded, if it is not ready yet. ${gets}`, yes: "Start" };
    if (!(await ask({ ...question, danger: false }))) return;
    // Without a version, the server changes a running rollout only, and does not start another one.
    await this.send({ action: "start", [kind]: share, ...(running ? {} : { version: exactVersion(number) }) }, number);
  }

  async send(body, number) {
    this.busy = true;
    this.form();
    try {
      const answer = await request("POST", this.path, { body: toJson(body), type: "application/json" });
      const found = longAsText(await answer.text());
      this.turn += 1;
      this.draw(found);
      if (found.state === "running") message(`Version ${number} of ${this.name} is rolled out.`);
      else message(`The rollout of version ${number} of ${this.name} has ended: ${found.reason}`, true);
    } catch (error) {
      this.problem(words(error));
      this.rights = -Infinity;
    } finally {
      this.busy = false;
      this.refresh();
      this.form();
    }
  }
}
