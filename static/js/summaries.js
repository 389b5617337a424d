/* Summaries in the transcript: the one that stands for what is no longer sent, and the one that waits for the window to
   move. Each can be unfolded and changed. A summary never changes (an edit makes another), so each is read once. */

import { countChars, isBlank, number } from "./format.js";
import { fill, gettext, joined, ngettext } from "./i18n.js";
import { isComposing } from "./keys.js";
import { blockElement, decorateCode } from "./message.js";

export class Summaries {
  #known = new Map(); // by id
  #rows = { current: null, next: null };
  #wanted = { current: null, next: null };

  /** maxChars: how long one may be. read(id) and save(id, text) give what the server knows of a summary; report(error) what went wrong; place() puts the
      rows where they belong; edited(): the next prompt begins with other words. */
  constructor({ maxChars, read, save, report, place, edited }) {
    Object.assign(this, { maxChars, read, save, report, place, edited });
  }

  /** The rows to place: the one where the window begins, and the one that waits with the message that it ends with. */
  get rows() {
    return { current: this.#rows.current, next: this.#rows.next, until: this.#known.get(this.#rows.next?.dataset.summary)?.until ?? null };
  }

  /** Ids of the two, null for none. Draws what is known; what is not is read first. */
  async show(wanted) {
    this.#wanted = wanted;
    const missing = Object.values(wanted).filter((id) => id !== null && !this.#known.has(id));
    this.#draw();
    if (missing.length === 0) return;
    try {
      for (const summary of await Promise.all(missing.map((id) => this.read(id)))) this.#known.set(summary.id, summary);
    } catch (error) {
      if (error.code !== "offline" && error.code !== "not_found") this.report(error); // it is asked for again with the next count
    }
    this.#draw();
    this.place();
  }

  #draw() {
    for (const place of ["current", "next"]) {
      const row = this.#rows[place];
      if (row?.querySelector(".editor")) continue; // what is being written stays, whatever happens meanwhile
      const summary = this.#known.get(this.#wanted[place]);
      if (summary === undefined) this.#rows[place] = null;
      else if (row?.dataset.summary !== summary.id) this.#rows[place] = this.#newRow(summary, place, row?.querySelector("details").open);
      if (row !== this.#rows[place]) row?.replaceWith(...[this.#rows[place]].filter(Boolean));
    }
  }

  #newRow(summary, place, isOpen = false) {
    const row = document.getElementById("part-summary").content.firstElementChild.cloneNode(true);
    row.dataset.summary = summary.id;
    row.classList.toggle("is-waiting", place === "next");
    row.querySelector("details").open = isOpen;
    row.querySelector(".summary-label").textContent = labelOf(summary, place);
    row.querySelector(".chip").textContent = summary.is_edited ? gettext("Changed by you") : gettext("Written by the model");
    row.querySelector(".summary-text").replaceChildren(...summary.blocks.map(blockElement));
    decorateCode(row);
    const note = row.querySelector(".summary-note");
    note.textContent = noteOf(summary, place);
    note.hidden = note.textContent === "";
    row.querySelector('[data-action="edit-summary"]').addEventListener("click", () => this.#edit(row, summary));
    return row;
  }

  #edit(row, summary) {
    const form = document.getElementById("part-summary-editor").content.firstElementChild.cloneNode(true);
    const field = form.querySelector("textarea");
    const submit = form.querySelector('[type="submit"]');
    const body = row.querySelector(".summary-body");
    const close = () => {
      form.remove();
      body.hidden = false;
      this.#draw();
      this.place();
    };
    const check = () => {
      const isTooLong = countChars(field.value) > this.maxChars;
      submit.disabled = isBlank(field.value) || isTooLong;
      field.setAttribute("aria-invalid", String(isTooLong));
    };
    const save = async () => {
      if (submit.disabled) return;
      submit.disabled = true;
      try {
        const changed = await this.save(summary.id, field.value);
        this.#known.set(changed.id, changed);
        for (const place of ["current", "next"]) if (this.#wanted[place] === summary.id) this.#wanted[place] = changed.id;
        close();
        this.#focus(changed.id);
        this.edited();
      } catch (error) {
        check();
        this.report(error);
      }
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save();
    });
    form.querySelector('[data-action="edit-cancel"]').addEventListener("click", () => {
      close();
      this.#focus(row.dataset.summary);
    });
    field.addEventListener("input", check);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isComposing(event)) save();
      else if (event.key === "Escape" && !isComposing(event)) form.querySelector('[data-action="edit-cancel"]').click();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    field.value = summary.text;
    body.hidden = true;
    body.after(form);
    check();
    field.focus();
  }

  #focus(id) {
    const row = Object.values(this.#rows).find((each) => each?.dataset.summary === id);
    row?.querySelector('[data-action="edit-summary"]').focus();
  }
}

function labelOf({ messages }, place) {
  const label = place === "next" ? gettext("Summary of messages 1–%(last)s, for when they leave the window") : gettext("Summary of messages 1–%(last)s");
  return fill(label, { last: number(messages) });
}

function noteOf({ missing }, place) {
  const waiting = place === "next" ? gettext("Not sent yet: it takes the place of these messages when the window is full.") : "";
  const unknown = missing === 0 ? "" : fill(
    ngettext("%(num)s of these messages had left the window before it was written; it does not know it.", "%(num)s of these messages had left the window before it was written; it does not know them.", missing),
    { num: number(missing) },
  );
  return joined([waiting, unknown]);
}
