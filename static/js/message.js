/* Draws one message: its blocks, the stage of a running reply, its outcome, the numbers under it.

   Finished blocks are written once and never touched again; of a running reply only the open block is replaced. */

import { gettext } from "./i18n.js";
import { stageText, statsLine } from "./format.js";

const part = (name) => document.getElementById(`part-${name}`).content;

export function newUserMessage(id, html) {
  const article = part("user").firstElementChild.cloneNode(true);
  identify(article, id);
  article.querySelector(".prose").replaceChildren(blockElement(html));
  decorateCode(article.querySelector(".prose"));
  return article;
}

export function newAssistantMessage(id) {
  const article = part("assistant").firstElementChild.cloneNode(true);
  identify(article, id);
  return article;
}

function identify(article, id) {
  article.id = `m-${id}`;
  article.dataset.message = id;
}

/** Bring an article that the server drew into the state that its data attributes tell. */
export function wake(article) {
  decorateCode(article.querySelector(".prose"));
  if (article.dataset.role !== "assistant") return;
  const isOpen = article.classList.contains("is-open");
  if (isOpen) showStage(article, { stage: "starting" });
  else showEnd(article);
}

/** Draw what changed in a running turn. `changed` are indices of blocks. */
export function paint(article, turn, changed) {
  const prose = article.querySelector(".prose");
  while (prose.childElementCount > turn.blocks.length) prose.lastElementChild.remove();
  for (const index of changed) {
    const block = turn.blocks[index];
    if (block === undefined) continue; // gone again before it was drawn
    const element = blockElement(block.html);
    if (index < prose.childElementCount) prose.children[index].replaceWith(element);
    else prose.append(element);
    if (block.isDone || turn.isOver) decorateCode(element);
  }
  article.classList.toggle("is-open", !turn.isOver);
  if (!turn.isOver) {
    showStage(article, turn);
    return;
  }
  article.dataset.status = turn.status;
  article.dataset.error = turn.error;
  article.dataset.stats = turn.stats === null ? "" : JSON.stringify(turn.stats);
  showEnd(article);
}

/** A reply that is about to be continued or has just been accepted. */
export function open(article) {
  article.classList.add("is-open");
  showStage(article, { stage: "starting" });
}

export const statsOf = (article) => (article.dataset.stats ? JSON.parse(article.dataset.stats) : null);

export const plainText = (article) => article.querySelector(".prose").innerText;

function blockElement(html) {
  const block = document.createElement("div");
  block.className = "block";
  block.innerHTML = html; // sanitised on the server
  return block;
}

function decorateCode(root) {
  for (const figure of root.querySelectorAll("figure.code")) {
    if (!figure.querySelector(".code-copy")) figure.append(part("code-copy").cloneNode(true));
  }
}

function showStage(article, turn) {
  article.setAttribute("aria-busy", "true");
  article.querySelector(".stage-text").textContent = stageText(turn);
  const progress = article.querySelector(".stage progress");
  progress.hidden = !["loading", "reading"].includes(turn.stage) || !turn.total;
  if (!progress.hidden) progress.value = turn.done / turn.total;
  article.querySelector(".outcome").hidden = true;
}

function showEnd(article) {
  article.removeAttribute("aria-busy");
  const stats = statsOf(article);
  const line = article.querySelector(".message-stats");
  line.hidden = stats === null;
  line.textContent = stats === null ? "" : statsLine(stats);
  const outcome = outcomeOf(article.dataset, stats, article.querySelector(".prose").childElementCount > 0);
  const box = article.querySelector(".outcome");
  box.hidden = outcome === null;
  if (outcome === null) return;
  box.className = `outcome is-${outcome.kind}`;
  const chip = box.querySelector(".chip");
  chip.className = `chip chip-${outcome.kind === "failed" ? "danger" : "warn"}`;
  chip.textContent = outcome.label;
  box.querySelector(".outcome-text").textContent = outcome.text;
  box.querySelector('[data-action="continue"]').hidden = !outcome.canContinue;
  box.querySelector('[data-action="retry"]').hidden = outcome.canContinue;
}

/** What is to be said under a reply that did not come to its own end; null for one that did. */
export function outcomeOf({ status, error }, stats, hasText) {
  if (status === "done" && stats?.finish_reason === "length") {
    return { kind: "cut", label: gettext("Length limit"), text: "", canContinue: true };
  }
  const labels = { stopped: gettext("Stopped"), interrupted: gettext("Interrupted"), failed: gettext("Failed") };
  if (!(status in labels)) return null;
  const text = status === "interrupted" ? gettext("The server stopped while this was written.") : error || "";
  return { kind: status, label: labels[status], text, canContinue: hasText };
}
