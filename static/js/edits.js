/* Edits that the server has not answered yet: like sends they outlive a line that drops and a page that is left.

   An edit keeps its client_id: sent again it is the same edit, and stored once. The border: no DOM, no socket. */

export class Edits {
  #out = new Set(); // client ids that went out on the line that is open now

  constructor(store) {
    this.store = store;
    this.frames = store.get("edits", []);
  }

  add(frame) {
    this.#keep([...this.frames, frame]);
  }

  find(clientId) {
    return this.frames.find((frame) => frame.client_id === clientId);
  }

  remove(clientId) {
    if (this.find(clientId)) this.#keep(this.frames.filter((frame) => frame.client_id !== clientId));
  }

  /** The conversation is gone. */
  removeAll(conversation) {
    this.#keep(this.frames.filter((frame) => frame.conversation !== conversation));
  }

  /** What is to go out now; it then counts as being on its way. */
  take(conversation) {
    const waiting = this.frames.filter((frame) => frame.conversation === conversation && !this.#out.has(frame.client_id));
    for (const frame of waiting) this.#out.add(frame.client_id);
    return waiting;
  }

  /** To be sent again, when `take` is asked next. */
  wait(clientId) {
    this.#out.delete(clientId);
  }

  /** The line was lost: nobody knows what arrived. */
  waitAll() {
    this.#out.clear();
  }

  #keep(frames) {
    this.frames = frames;
    this.store.set("edits", frames);
  }
}
