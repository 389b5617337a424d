/* Under a question: which earlier messages were quoted in front of it, with links to them, and the quotation itself,
   word for word as the model was given it. */

import { number } from "./format.js";
import { fill, ngettext } from "./i18n.js";
import { placeText } from "./places.js";

/** Draw what the article's data say; nothing where nothing was recalled. */
export function drawRecalled(article) {
  if (!article.dataset.recalled || article.querySelector(".recalled")) return;
  const { text, sources } = JSON.parse(article.dataset.recalled);
  const box = document.getElementById("part-recalled").content.firstElementChild.cloneNode(true);
  box.querySelector(".recalled-label").textContent = fill(
    ngettext("Recalled %(num)s earlier message", "Recalled %(num)s earlier messages", sources.length), { num: number(sources.length) },
  );
  box.querySelector(".recalled-links").replaceChildren(...sources.map(linkTo));
  box.querySelector(".recalled-text").textContent = text.trim();
  article.querySelector(".message-foot").before(box);
}

function linkTo({ message, position }) {
  const link = document.createElement("a");
  link.href = `#m-${message}`;
  link.dataset.action = "go-to";
  link.dataset.target = message;
  link.textContent = placeText(position);
  return link;
}
