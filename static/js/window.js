/* The context window of this page's conversation: asks the server what is in it, and shows the answer in the composer and
   in the transcript. One question at a time, the newest next; an answer to an older one is not shown. */

import { Gauge, noteOf } from "./gauge.js";
import { outsideText } from "./leaving.js";

const PAUSE_MS = 250;
const ANSWER_WITHIN_MS = 5000; // the server leaves questions without an answer while there are too many: then once more

export class ContextWindow {
  #number = 0;
  #isAsked = false;
  #isWaiting = false; // something has changed since it was asked
  #isAgain = false;
  #timer;
  #patience;
  #count = null;
  #refusal = "";

  /** ask(number) sends the question about what is being written and says whether it could be; transcript is where the
      window begins somewhere; policy is the dialog about what no longer fits, summaries stand for it. */
  constructor({ ask, transcript, policy, summaries }) {
    Object.assign(this, { ask, transcript, policy, summaries });
    this.gauge = new Gauge(document.getElementById("gauge"), document.getElementById("window-card"));
    this.note = document.getElementById("window-note");
    this.edge = document.getElementById("part-window-line").content.firstElementChild.cloneNode(true);
  }

  /** The id of the first message that is sent; null when all are, or none that is there already. */
  get start() {
    return this.#count?.outside > 0 ? this.#count.start : null;
  }

  /** What is being written, or what lies before it, is another one. */
  changed() {
    this.#refusal = "";
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#next(), PAUSE_MS);
  }

  /** The line is down: no answer will come. */
  lost() {
    this.#answered();
  }

  counted(count) {
    if (count.number !== this.#number) return;
    this.#answered();
    this.#count = count;
    if (count.window > 0) this.policy.know(count);
    this.gauge.show(count);
    this.#say();
    this.summaries.show({ current: count.summary_id, next: count.next_summary_id }); // rows that are known: at once
    this.drawn();
    if (this.#isWaiting) this.#next();
  }

  /** A send did not fit; its text is back in the field. */
  refused(sentence) {
    this.#refusal = sentence;
    this.#say();
  }

  /** Messages or summaries have come or gone: the line and what belongs to it stand where they should. */
  drawn() {
    const { start } = this;
    const outside = this.#count?.outside ?? 0;
    const { current, next, until } = this.summaries.rows;
    this.edge.querySelector(".window-line > span").textContent = outside > 0 ? outsideText(this.#count) : "";
    if (current !== null && !this.edge.contains(current)) this.edge.append(current);
    if (start === null && outside > 0) this.transcript.placeLast(this.edge);
    else this.transcript.placeAbove(this.edge, start);
    if (next !== null) this.transcript.placeBelow(next, until);
  }

  #next() {
    this.#isWaiting = this.#isAsked;
    if (this.#isWaiting) return;
    this.#number += 1;
    this.#isAgain = false;
    this.#askNow();
  }

  #askNow() {
    this.#isAsked = this.ask(this.#number);
    if (this.#isAsked) this.#patience = setTimeout(() => this.#askAgain(), ANSWER_WITHIN_MS);
  }

  /** Under the same number while nothing has changed: an answer that was only late counts as well. */
  #askAgain() {
    const isNews = this.#isWaiting;
    this.#answered();
    if (isNews) this.#next();
    else if (!this.#isAgain) {
      this.#isAgain = true;
      this.#askNow();
    }
  }

  #answered() {
    clearTimeout(this.#patience);
    this.#isAsked = false;
  }

  #say() {
    const refusal = this.#refusal || this.#count?.problem;
    const text = this.#refusal || (this.#count ? noteOf(this.#count) : "");
    const [leave, choose] = this.note.querySelectorAll("button");
    this.note.hidden = text === "";
    this.note.classList.toggle("is-refusal", Boolean(refusal));
    const line = this.note.querySelector("p");
    if (line.textContent !== text) line.textContent = text; // a screen reader says again what is written again
    leave.hidden = !refusal || this.policy.name !== "full";
    choose.hidden = !refusal || document.getElementById("model-select") === null;
  }
}
