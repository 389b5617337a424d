/* Tells the server what is being written, so that the engine reads it before it is sent. Sparingly: after a pause, only
   what is long enough to matter, and again only when much has been added. An edit of what was told takes it back. */

const MIN_CHARS = 160; // less is read in no time
const PAUSE_MS = 700;
const MAX_CHARS_PER_S = 12_000; // the server reads no more than some 16,000

/** Whether `text` is worth telling after `told`, of which it is a longer version: one tenth more, at least MIN_CHARS. */
export function isWorthTelling(text, told) {
  return text.length - told.length >= Math.max(MIN_CHARS, told.length / 10);
}

export class Drafts {
  #told = "";
  #timer;
  #notBefore = 0;

  /** tell(text or null) says whether it could be told; null takes back what was. */
  constructor(tell) {
    this.tell = tell;
  }

  /** The draft is now `text`. */
  changed(text) {
    clearTimeout(this.#timer);
    if (this.#told && !text.startsWith(this.#told)) {
      this.tell(null);
      this.#told = "";
    }
    if (!isWorthTelling(text, this.#told)) return;
    const pause = Math.max(PAUSE_MS, this.#notBefore - performance.now());
    this.#timer = setTimeout(() => this.#tellNow(text), pause);
  }

  /** It has been sent, or the server has forgotten it. */
  forget() {
    clearTimeout(this.#timer);
    this.#told = "";
  }

  #tellNow(text) {
    if (!this.tell(text)) return;
    this.#told = text;
    this.#notBefore = performance.now() + (1000 * text.length) / MAX_CHARS_PER_S;
  }
}
