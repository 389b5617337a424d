/* Draws the messages that are not stored yet, below the others. */

import { gettext } from "./i18n.js";

export class Pending {
  constructor(list) {
    this.list = list;
  }

  /** `why` says what a waiting message waits for. */
  draw(entries, why) {
    const known = new Map([...this.list.children].map((article) => [article.dataset.client, article]));
    const articles = entries.map((entry) => {
      const article = known.get(entry.clientId) ?? newArticle(entry);
      const isRefused = entry.state === "refused";
      article.classList.toggle("is-refused", isRefused);
      article.querySelector(".spinner").hidden = isRefused;
      article.querySelector(".pending-text").textContent = { sent: gettext("Sending"), waiting: why, refused: entry.error }[entry.state];
      article.querySelector('[data-action="resend"]').hidden = !isRefused;
      article.querySelector('[data-action="take-back"]').hidden = !isRefused && (entry.state === "sent" || entry.hasGoneOut);
      return article;
    });
    const isSame = articles.length === this.list.childElementCount && articles.every((article, index) => this.list.children[index] === article);
    if (!isSame) this.list.replaceChildren(...articles);
  }
}

function newArticle(entry) {
  const article = document.getElementById("part-pending").content.firstElementChild.cloneNode(true);
  article.dataset.client = entry.clientId;
  article.querySelector(".bubble").textContent = entry.text;
  return article;
}
