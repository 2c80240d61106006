// The actions of a model: load, unload, roll back and promote. Each asks for confirmation.

import { compareVersions, exactVersion, request, toJson, words } from "./page-api.js";
import { menu } from "./page-menu.js";
import { servingVersion } from "./page-overview.js";
import { ask, message } from "./page-shell.js";

const UP = ["admitted", "loading", "warming", "ready", "draining"];

export class Actions {
  // Puts the menu in the place of an element.
  constructor(place, name, done) {
    Object.assign(this, { menu: menu(name, [], "Actions"), name, done, busy: false, shown: null });
    place.replaceWith(this.menu);
  }

  show(model, server) {
    this.menu.hidden = !model;
    if (!model) return;
    Object.assign(this, { model, server });
    const up = model.versions.some((version) => UP.includes(version.state));
    const serving = servingVersion(model)?.version, candidate = model.versions.find((version) => version.candidate)?.version;
    const older = model.versions.filter(({ version, state }) => serving !== undefined && compareVersions(version, serving) < 0 && state !== "ready").slice(0, 5);
    const rolls = server.calls.rollout && older.length > 0;
    const key = JSON.stringify([this.busy, up, serving, candidate, older.map(({ version }) => version), rolls]);
    if (key === this.shown) return;
    this.shown = key;
    const item = (words, act, disabled = false) => ({ words, act, disabled: disabled || this.busy });
    this.menu.show([
      item(up ? "Reload" : "Load", () => this.call("load", null, {
        title: up ? `Reload ${this.name}?` : `Load ${this.name}?`, yes: up ? "Reload" : "Load", danger: false,
        words: "The server reads the model's directory again and loads the versions that should serve. A version that serves continues until the new one is ready.",
      })),
      ...(rolls ? [item("Roll back…", () => this.rollout("rollback", candidate ?? serving))] : []),
      ...older.map(({ version }) => item(`Serve v${version} too…`, () => this.call("load", version, {
        title: `Serve version ${version} of ${this.name} too?`, yes: `Load version ${version}`, danger: false,
        words: `Version ${version} is loaded and answers requests that name it. Version ${serving} still answers requests that name no version.`,
      }))),
      item("Unload…", () => this.call("unload", null, {
        title: `Unload ${this.name}?`, words: "The model answers no requests until it is loaded again.", yes: "Unload",
      }), !up),
    ], this.busy ? "Working…" : "Actions");
  }

  // Ends a rollout, or withdraws the version that serves.
  rollout(action, version) {
    const path = `/v2/models/${encodeURIComponent(this.name)}/rollout`, back = action === "rollback";
    return this.post(path, { action }, back ? "rolled back" : "promoted", {
      title: back ? `Roll back ${this.name}?` : `Promote version ${version} of ${this.name}?`, yes: back ? "Roll back" : "Promote", danger: back,
      words: back ? `Version ${version} is withdrawn. The version before it is loaded, if it is not ready, and answers all requests that name no version.`
        : `Version ${version} answers all requests that name no version.`,
    });
  }

  call(verb, version, question) {
    const body = version === null ? null : { parameters: { version: exactVersion(version) } };
    return this.post(`/v2/repository/models/${encodeURIComponent(this.name)}/${verb}`, body, `${verb}ed`, question);
  }

  async post(path, body, did, question) {
    if (this.busy || !(await ask(question))) return;
    this.working(true);
    try {
      await request("POST", path, { body: body && toJson(body) });
      message(`${this.name} is ${did}.`);
    } catch (error) {
      // Without an answer, the server may have done it.
      message(error.status ? `${this.name} was not ${did}: ${words(error)}` : `${this.name}: ${words(error)}`, true);
    } finally {
      this.working(false);
      this.done();
    }
  }

  working(busy) {
    this.busy = busy;
    this.show(this.model, this.server);
  }
}
