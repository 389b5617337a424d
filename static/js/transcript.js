/* The list of messages on the page: finding, adding, exchanging. Upserts by id, so that nothing is ever shown twice. */

import { gettext } from "./i18n.js";
import * as message from "./message.js";

export const whyNoEdit = () => gettext("Messages can be edited when the reply has ended.");

export class Transcript {
  constructor(list) {
    this.list = list;
    for (const article of this.#messages) message.wake(article);
  }

  get last() {
    return this.#messages.at(-1) ?? null;
  }

  /** How many messages are loaded. */
  get num() {
    return this.#messages.length;
  }

  /** What else stands in the list (where the window begins, summaries) is no message. */
  get #messages() {
    return [...this.list.children].filter((element) => element.matches(".message"));
  }

  /** The id of the topmost message that is loaded. */
  get first() {
    return this.list.querySelector(".message")?.dataset.message ?? null;
  }

  /** The id of the last message: the parent of what is sent next. */
  get leaf() {
    return this.last?.dataset.message ?? null;
  }

  get(id) {
    return this.list.querySelector(`[data-message="${CSS.escape(id)}"]`);
  }

  get running() {
    return this.list.querySelector(".message.is-open");
  }

  lastOf(role) {
    return [...this.list.querySelectorAll(`[data-role="${role}"]`)].at(-1) ?? null;
  }

  addUser(id, html, recalled) {
    if (!this.get(id)) this.list.append(message.newUserMessage(id, html, recalled));
  }

  addAssistant(id) {
    if (this.get(id)) return;
    const article = message.newAssistantMessage(id);
    this.list.append(article);
    message.open(article);
  }

  /** Put a page of the server's in the place of everything from its first message on; what lies above it stays.

      What stays is not moved: somebody may be writing in it. */
  exchange(html) {
    const fresh = parse(html);
    const known = fresh.map((article) => {
      const current = this.get(article.dataset.message);
      const isSame = current !== null && current.dataset.revision === article.dataset.revision && current.dataset.revision !== "";
      return isSame ? current : article;
    });
    const shown = this.#messages;
    const top = fresh.length > 0 ? shown.findIndex((article) => article.dataset.message === fresh[0].dataset.message) : -1;
    const above = shown.slice(0, Math.max(0, top));
    const kept = new Set(known);
    for (const article of shown.slice(above.length)) if (!kept.has(article)) article.remove();
    let last = above.at(-1) ?? null;
    for (const article of known) {
      if (!article.isConnected) {
        if (last === null) this.list.prepend(article);
        else last.after(article);
        message.wake(article);
      }
      last = article;
    }
    return above.length > 0;
  }

  /** Older messages, above the others. */
  prepend(html) {
    const articles = parse(html).filter((article) => this.get(article.dataset.message) === null);
    this.list.prepend(...articles);
    articles.forEach(message.wake);
  }

  /** Let an element that is no message stand above this one; null, or one that is not loaded, takes it away. */
  placeAbove(element, id) {
    const article = id === null ? null : this.get(id);
    if (article === null) element.remove();
    else if (article.previousElementSibling !== element) article.before(element);
  }

  /** Put something else below all messages; what comes later stands below it. */
  placeLast(element) {
    if (this.list.lastElementChild !== element) this.list.append(element);
  }

  /** As placeAbove, below a message. */
  placeBelow(element, id) {
    const article = id === null ? null : this.get(id);
    if (article === null) element.remove();
    else if (article.nextElementSibling !== element) article.after(element);
  }

  /** While a reply is written nothing can be edited; the buttons say so. */
  allowEdits(isAllowed) {
    for (const button of this.list.querySelectorAll('[data-action="edit"]')) {
      if ((button.getAttribute("aria-disabled") === "true") !== isAllowed) continue;
      button.setAttribute("aria-disabled", String(!isAllowed));
      button.title = isAllowed ? button.getAttribute("aria-label") : whyNoEdit();
    }
  }

  clear() {
    this.list.replaceChildren();
  }
}

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html; // drawn by the server from escaped text and sanitised blocks
  return [...template.content.children];
}
