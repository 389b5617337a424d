/* The way to a message far above: page after page is loaded until it is there. A person sees how far that has come, and
   can give it up; nothing is left out in between, so the transcript has no holes. */

import { announce, notify } from "./floating.js";
import { number } from "./format.js";
import { fill, gettext } from "./i18n.js";

export class Bringing {
  #way = null;
  #from = null;

  constructor(box, reading) {
    Object.assign(this, { box, reading });
    box.querySelector("button").addEventListener("click", () => this.cancel());
  }

  /** The message, loaded; null when it is on another branch, which is said, or given up. Another one takes its place. */
  async bring(id) {
    this.#end();
    const way = new AbortController();
    this.#way = way;
    this.#from = document.activeElement;
    try {
      const message = await this.reading.bring(id, way.signal, (num) => this.#show(num));
      if (message === null && !way.signal.aborted) notify(gettext("That message is in another version of this conversation."));
      return message;
    } finally {
      if (this.#way === way) this.#end();
    }
  }

  /** False when there was nothing to give up. What has been loaded stays. */
  cancel() {
    if (this.#way === null) return false;
    const from = this.#from;
    this.#end();
    from?.focus({ preventScroll: true });
    return true;
  }

  #show(num) {
    const text = fill(gettext("Going to an earlier message, %(num)s loaded so far"), { num: number(num) });
    if (this.box.hidden) announce(text); // once: a screen reader need not hear every page
    this.box.querySelector("span").textContent = text;
    this.box.hidden = false;
  }

  #end() {
    this.#way?.abort();
    this.#way = this.#from = null;
    this.box.hidden = true;
  }
}
