/* Which part of the conversation is on the page: its end, read again when it may have changed, and older messages above. */

import { notify } from "./floating.js";

export class Reading {
  #again = null;
  #older = null;

  /** conversation: { id, isStored, drawn(), gone() }, told of what has been read. older: where to go on above, or null. */
  constructor({ conversation, older, requests, urls, transcript, follower }) {
    Object.assign(this, { conversation, older, requests, urls, transcript, follower });
  }

  /** Read the end again, and whether that could be; one request serves everybody who asks meanwhile. */
  again() {
    this.#again ??= this.#readEnd().finally(() => { this.#again = null; });
    return this.#again;
  }

  /** Draw the end as the server has it. */
  draw({ html, older }) {
    const hasMoreAbove = this.transcript.exchange(html);
    if (!hasMoreAbove) this.#setOlder(older);
    this.conversation.drawn();
  }

  /** One page more above the others, if there is one. */
  loadOlder() {
    if (this.older === null) return Promise.resolve();
    this.#older ??= this.#readOlder().finally(() => { this.#older = null; });
    return this.#older;
  }

  /** A message of this branch, loaded with all that lies below it; null when it is on another one, or the signal is to
      stop. onPage(num): so many messages are there, and not yet this one. */
  async bring(id, signal, onPage) {
    while (this.transcript.get(id) === null && this.older !== null && !signal.aborted) {
      onPage(this.transcript.num);
      await this.loadOlder();
    }
    return signal.aborted ? null : this.transcript.get(id);
  }

  async #readEnd() {
    if (!this.conversation.isStored) return true;
    try {
      this.draw(await this.requests.json(this.urls.window(this.conversation.id)));
    } catch (error) {
      if (error.code === "not_found") this.conversation.gone();
      else if (error.code !== "offline" && error.code !== "storage_unavailable") notify(error.message); // the banner says these
      return false;
    }
    return true;
  }

  async #readOlder() {
    const address = `${this.urls.window(this.conversation.id)}?before=${this.transcript.first}`;
    const { html, older } = await this.requests.json(address);
    this.follower.keepPlace(() => {
      this.transcript.prepend(html);
      this.conversation.olderDrawn();
      this.#setOlder(older);
    });
  }

  #setOlder(older) {
    this.older = older;
    document.getElementById("older").hidden = older === null;
  }
}
