/* The field a message is written in. It is never switched off: what is written during a reply waits for its end. */

import { Drafts } from "./drafts.js";
import { countChars, isBlank, number } from "./format.js";
import { fill, gettext } from "./i18n.js";
import { isSendKey } from "./keys.js";

const SHOW_LIMIT_FROM = 0.8;

export class Composer {
  #draftName = "";
  #saveTimer;
  #note = "";

  /** onSend(text) says whether it took the text; onDraft(text or null), whether it was told; onChange(); onStop();
      onEditLast(). */
  constructor(form, store, maxChars, handlers) {
    this.form = form;
    this.store = store;
    this.maxChars = maxChars;
    this.handlers = handlers;
    this.field = form.querySelector("textarea");
    this.hint = form.querySelector(".composer-hint");
    this.sendButton = form.querySelector('[type="submit"]');
    this.stopButton = form.querySelector(".is-stop");
    this.isRunning = false;
    this.drafts = new Drafts((text) => handlers.onDraft(text));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.field.addEventListener("input", () => this.#changed());
    this.field.addEventListener("keydown", (event) => this.#pressed(event));
    this.stopButton.addEventListener("click", () => handlers.onStop());
    addEventListener("pagehide", () => this.#save());
    form.addEventListener("click", (event) => {
      if (!event.target.closest("button, .choice")) this.field.focus();
    });
    this.field.setAttribute("enterkeyhint", matchMedia("(pointer: coarse)").matches ? "enter" : "send");
  }

  /** Keep the draft under this name from now on; `text` of an older draft is put back. */
  keepDraft(name) {
    this.#draftName = name;
    if (this.field.value === "") this.field.value = this.store.get(`draft:${name}`, "");
    this.#draw();
  }

  /** The draft belongs to a conversation that has just come into being. */
  renameDraft(name) {
    this.store.remove(`draft:${this.#draftName}`);
    this.#draftName = name;
    this.#save();
  }

  set(text) {
    this.field.value = text;
    this.#changed();
    this.field.focus();
    this.field.setSelectionRange(text.length, text.length);
  }

  /** Put a text that could not be sent in front of what is being written. */
  takeBack(text) {
    this.set(this.field.value.trim() ? `${text}\n\n${this.field.value}` : text);
  }

  setRunning(isRunning) {
    const hasEnded = this.isRunning && !isRunning;
    this.isRunning = isRunning;
    if (hasEnded) this.retellDraft();
    this.#draw();
  }

  /** The server does not know what is being written: it is another one, or had something better to do. */
  retellDraft() {
    this.drafts.forget();
    this.#tellDraft();
  }

  /** A quiet sentence in place of the usual hint; "" takes it away. */
  setNote(text) {
    if (text === this.#note) return;
    this.#note = text;
    this.#draw();
  }

  focus() {
    this.field.focus();
  }

  #send() {
    const text = this.field.value;
    if (isBlank(text) || this.#excess() > 0) return;
    if (!this.handlers.onSend(text)) return;
    this.field.value = "";
    this.drafts.forget();
    this.handlers.onChange();
    this.#save();
    this.#draw();
    this.field.focus();
  }

  #pressed(event) {
    if (isSendKey(event)) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && this.field.value === "" && !event.shiftKey) {
      if (this.handlers.onEditLast()) event.preventDefault();
    }
  }

  #changed() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = setTimeout(() => this.#save(), 300);
    this.#tellDraft();
    this.handlers.onChange();
    this.#draw();
  }

  /** What would be sent; "" when nothing can be. */
  get text() {
    const text = this.field.value;
    return isBlank(text) || this.#excess() > 0 ? "" : text;
  }

  #tellDraft() {
    this.drafts.changed(this.text);
  }

  #save() {
    clearTimeout(this.#saveTimer);
    if (!this.#draftName) return;
    if (this.field.value) this.store.set(`draft:${this.#draftName}`, this.field.value);
    else this.store.remove(`draft:${this.#draftName}`);
  }

  #excess() {
    return this.field.value.length > this.maxChars ? countChars(this.field.value) - this.maxChars : 0;
  }

  #draw() {
    const isEmpty = isBlank(this.field.value);
    const excess = this.#excess();
    this.stopButton.hidden = !(this.isRunning && isEmpty);
    this.sendButton.hidden = !this.stopButton.hidden;
    this.sendButton.disabled = isEmpty || excess > 0;
    this.field.setAttribute("aria-invalid", String(excess > 0));
    this.hint.classList.toggle("is-error", excess > 0);
    this.hint.textContent = this.#hintText(isEmpty, excess);
    if (!CSS.supports("field-sizing", "content")) {
      this.field.style.height = "auto";
      this.field.style.height = `${this.field.scrollHeight}px`;
    }
  }

  #hintText(isEmpty, excess) {
    const { length } = this.field.value;
    if (excess > 0) {
      return fill(gettext("%(excess)s characters too many; a message may have %(max)s."), { excess: number(excess), max: number(this.maxChars) });
    }
    if (length > this.maxChars * SHOW_LIMIT_FROM) {
      return fill(gettext("%(count)s of %(max)s characters"), { count: number(countChars(this.field.value)), max: number(this.maxChars) });
    }
    if (this.isRunning && !isEmpty) return gettext("Will be sent when the reply has ended");
    if (this.#note) return this.#note;
    if (matchMedia("(pointer: coarse)").matches) return "";
    return gettext("Enter sends, Shift + Enter begins a new line");
  }
}
