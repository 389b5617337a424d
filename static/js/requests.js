/* Requests to our own pages. Every refusal becomes a RequestError with a sentence for a person. */

import { gettext } from "./i18n.js";

export class RequestError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const MARK = { "X-Requested-With": "fetch" };

export class Requests {
  /** onLoggedOut() is called when the session has ended, onOutage() when the server's database is away. */
  constructor(csrfToken, { onLoggedOut, onOutage }) {
    Object.assign(this, { csrfToken, onLoggedOut, onOutage });
  }

  async text(url) {
    return (await this.#send(url, { headers: MARK })).text();
  }

  async json(url) {
    return (await this.#send(url, { headers: MARK })).json();
  }

  async post(url, fields) {
    const headers = { ...MARK, "X-CSRFToken": this.csrfToken };
    return (await this.#send(url, { method: "POST", headers, body: new URLSearchParams(fields) })).json();
  }

  async #send(url, options) {
    let response;
    try {
      response = await fetch(url, { credentials: "same-origin", ...options });
    } catch (error) {
      throw new RequestError("offline", gettext("The server cannot be reached. Nothing was changed."), { cause: error });
    }
    if (response.ok) return response;
    if (response.status === 401) this.onLoggedOut();
    const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
    const refusal = isJson ? await response.json() : {};
    if (refusal.code === "storage_unavailable") this.onOutage();
    throw new RequestError(refusal.code ?? "error", refusal.message ?? gettext("The server could not do that."));
  }
}
