/* The server's database is away: what was asked in vain is asked again, with pauses, until all of it has been answered.

   The border: no DOM and no socket. It is told of refusals and answers, and tells when to ask. */

import { retryDelay } from "./socket.js";

export class Outage {
  #attempt = 0;
  #timer = null;
  #isOn = false;

  /** ask() everything again; onWaiting(ms before that); onOver(). */
  constructor({ ask, onWaiting, onOver }) {
    Object.assign(this, { ask, onWaiting, onOver });
  }

  get isOn() {
    return this.#isOn;
  }

  /** Something could not be answered. */
  refused() {
    this.#isOn = true;
    if (this.#timer !== null) return;
    const delay = retryDelay(this.#attempt, Math.random);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.askNow(), delay);
    this.onWaiting(delay);
  }

  askNow() {
    if (!this.#isOn) return;
    this.pause();
    this.ask();
  }

  /** All that was asked has been answered; a refusal that came in between counts. */
  answered() {
    if (!this.#isOn || this.#timer !== null) return;
    this.#isOn = false;
    this.#attempt = 0;
    this.onOver();
  }

  /** Nothing can be asked now: the line is down. */
  pause() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }
}
