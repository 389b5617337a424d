/* What a person sees of the work ahead: nothing when it is quick; else a share where the hint stands, and on the card of the
   model how much of the conversation it has read. */

import { number } from "./format.js";
import { fill, gettext } from "./i18n.js";

const SHOW_AFTER_MS = 600;
const MIN_TOKENS = 32; // fewer are no wait for anybody

export class Preparing {
  #since = null;
  #timer;

  constructor(composer, model, isArchived) {
    this.composer = composer;
    this.model = model;
    this.setArchived(isArchived);
  }

  setArchived(isArchived) {
    this.usual = isArchived ? gettext("Archived; the next message takes it back out") : "";
    this.composer.setNote(this.usual);
  }

  /** `done` of `total` tokens have been read. */
  show({ done, total }) {
    const tokens = { done: number(done), total: number(total) };
    clearTimeout(this.#timer);
    if (done >= total) {
      this.#since = null;
      this.composer.setNote(this.usual);
      this.model.showRead(fill(gettext("All %(total)s tokens so far have been read."), tokens));
      return;
    }
    if (this.#since !== null || total - done >= MIN_TOKENS) {
      this.#since ??= performance.now();
      const note = fill(gettext("Getting ready, %(share)s %"), { share: Math.floor((100 * done) / total) });
      this.#timer = setTimeout(() => this.composer.setNote(note), Math.max(0, this.#since + SHOW_AFTER_MS - performance.now()));
    }
    this.model.showRead(fill(gettext("%(done)s of %(total)s tokens have been read."), tokens));
  }

  /** Whatever was told is no longer so. */
  clear() {
    clearTimeout(this.#timer);
    this.#since = null;
    this.composer.setNote(this.usual);
    this.model.showRead("");
  }

  turnBegan() {
    this.usual = "";
    this.clear();
  }
}
