/* Following the conversation of this page: the server tells what happens in it from a `watch` on. One that is refused
   because the database is away is repeated until it is answered, and what may have been missed is read. */

import { Outage } from "./outage.js";

export class Following {
  #awaitsSnapshot = false;
  #pongs = []; // who waits for the next one

  /** conversation: { id, isStored, isRunning, missed() }; onOutage(ms before it is asked again), onOutageOver(). */
  constructor({ conversation, socket, reading, onOutage, onOutageOver }) {
    Object.assign(this, { conversation, socket, reading });
    const onOver = () => {
      onOutageOver();
      conversation.missed();
    };
    this.outage = new Outage({ ask: () => this.#catchUp(), onWaiting: onOutage, onOver });
  }

  /** The line is open. */
  opened(isFirst) {
    if (this.outage.isOn) return this.outage.askNow();
    this.#follow();
    if (!isFirst) this.reading.again();
    return undefined;
  }

  lost() {
    this.#pongs = [];
    this.outage.pause();
  }

  watch() {
    if (this.conversation.isStored) this.socket.send({ type: "watch", conversation: this.conversation.id });
  }

  /** A turn is running, and here is all of it. */
  snapshot() {
    this.#awaitsSnapshot = false;
  }

  /** Answers come in order: a pong without a snapshot before it says that no turn is running there. */
  ponged() {
    for (const settle of this.#pongs.splice(0)) settle();
    if (!this.#awaitsSnapshot) return;
    this.#awaitsSnapshot = false;
    if (this.conversation.isRunning) this.reading.again();
  }

  /** Watch it anew. Settled when the server has come to it; it may have refused before. */
  #follow() {
    this.watch();
    this.#awaitsSnapshot = this.conversation.isStored;
    const answer = new Promise((resolve) => this.#pongs.push(resolve));
    this.socket.send({ type: "ping" });
    return answer;
  }

  async #catchUp() {
    if (!this.socket.isOpen) return; // then when it is
    const answer = this.#follow();
    const isRead = await this.reading.again();
    await answer;
    if (isRead) this.outage.answered();
    else this.outage.refused();
  }
}
