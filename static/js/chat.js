/* Puts the chat page together: one socket, one conversation, and who is told of what. */

import { Bringing } from "./bringing.js";
import { Choice } from "./choice.js";
import { confirmOn, copy } from "./clipboard.js";
import { Composer } from "./composer.js";
import { ContextWindow } from "./window.js";
import { Conversation } from "./conversation.js";
import { edit } from "./editor.js";
import { announce, isSomethingOpen, notify, placePopovers, prepareDialogs } from "./floating.js";
import { fill, gettext } from "./i18n.js";
import { shortcut } from "./keys.js";
import { statsOf } from "./message.js";
import { Model } from "./model.js";
import { showNumbers } from "./numbers.js";
import { Pending } from "./pending.js";
import { Policy } from "./policy.js";
import { RequestError, Requests } from "./requests.js";
import { Follower } from "./scroll.js";
import { Sidebar } from "./sidebar.js";
import { Socket } from "./socket.js";
import { Store } from "./store.js";
import { Summaries } from "./summaries.js";
import { Transcript, whyNoEdit } from "./transcript.js";

const SHOW_BANNER_AFTER_MS = 1500;

const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("page").textContent);
const urls = addresses(page);

const store = new Store(page.person, () => notify(gettext("This browser does not keep drafts: its storage is full or switched off.")));
const requests = new Requests(page.csrf, { onLoggedOut: loggedOut, onOutage: () => conversation.following.outage.refused() });
const follower = new Follower(byId("scroller"), byId("to-latest"));
const transcript = new Transcript(byId("transcript"));
const choice = new Choice({
  page, urls, requests,
  onPreset: () => contextWindow.changed(),
  conversation: () => conversation,
  onModel: () => {
    model.refresh();
    composer.retellDraft();
    contextWindow.changed();
  },
});
const model = new Model(
  byId("model-chip"), byId("model-card"), page.engine,
  () => requests.json(urls.modelState(choice.model)),
  () => conversation.modelChanged(),
);
const composer = new Composer(byId("composer"), store, page.limits.messageChars, {
  onSend: (text) => conversation.send(text),
  onDraft: (text) => conversation.draft(text),
  onChange: () => contextWindow.changed(),
  onStop: () => conversation.stop(),
  onEditLast: () => editMessage(transcript.lastOf("user")),
});
const policy = new Policy(byId("window-dialog"), page.policy, async (values) => {
  const stored = await requests.post(urls.policy(conversation.id), values);
  contextWindow.changed();
  return stored;
});
const summaries = new Summaries({
  maxChars: page.limits.summaryChars,
  read: (id) => requests.json(urls.summary(conversation.id, id)),
  save: (id, text) => requests.post(urls.editSummary(conversation.id, id), { text }),
  report,
  place: () => {
    contextWindow.drawn();
    follower.pin();
  },
  edited: () => {
    contextWindow.changed();
    announce(gettext("The summary is used from your next message on"));
  },
});
const contextWindow = new ContextWindow({ policy, summaries, transcript, ask: (number) => conversation.count(number) });
const sidebar = new Sidebar({
  urls, requests, store,
  current: page.conversation,
  onArchived: (id, isArchived) => { if (id === conversation.id) conversation.setArchived(isArchived); },
  onRenamed: (id, title) => { if (id === conversation.id) conversation.showTitle(title); },
  onDeleted: (id) => { if (id === conversation.id) conversation.gone(); },
});
const socket = new Socket(urls.socket, page.limits.frameBytes, {
  onOpen: opened,
  onFrame: (frame) => conversation.frame(frame),
  onWaiting: waiting,
  onLoggedOut: checkSession,
});
const conversation = new Conversation({
  page, urls, socket, store, requests, transcript, follower, composer, sidebar, model, choice, contextWindow,
  pending: new Pending(byId("outbox")),
  onOutage: (delayMs) => {
    explain(delayMs);
    byId("banner").hidden = false;
  },
  onOutageOver: () => hideBanner(gettext("The database is back")),
  onEditRefused: (id, text) => {
    const article = transcript.get(id);
    if (article) openEditor(article, text);
    else composer.takeBack(text); // an older message, which is not on the page now
  },
});
const bringing = new Bringing(byId("bringing"), conversation.reading);

placePopovers();
prepareDialogs();
listen();
follower.toEnd();
requestAnimationFrame(() => follower.pin());
socket.open();

function addresses({ urls: patterns, noId }) {
  const withIds = (pattern) => (...ids) => ids.reduce((url, id) => url.replace(noId, id), pattern);
  const fixed = ["home", "conversations", "engine", "login"];
  const entries = Object.entries(patterns).map(([name, url]) => [name, fixed.includes(name) ? url : withIds(url)]);
  const socketUrl = new URL(patterns.socket, location.href);
  socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const modelState = (name) => `${patterns.engine}?${new URLSearchParams({ model: name })}`;
  return { ...Object.fromEntries(entries), modelState, socket: socketUrl.href };
}

// --- the connection

let bannerTimer = null;
let hasBeenOpen = false;

function opened() {
  if (!conversation.following.outage.isOn) hideBanner(gettext("The connection is back"));
  byId("shell").dataset.connection = "open";
  conversation.opened(!hasBeenOpen);
  hasBeenOpen = true;
}

/** The line is down. A short break is not worth a banner, so it comes late; each attempt only changes what it says. */
function waiting(delayMs) {
  byId("shell").dataset.connection = "lost";
  conversation.lost();
  explain(delayMs);
  bannerTimer ??= setTimeout(() => { byId("banner").hidden = false; }, SHOW_BANNER_AFTER_MS);
}

/** What is wrong: a server whose database is away accepts a line, and hangs up. */
function explain(delayMs) {
  const banner = byId("banner");
  const sentence = conversation.following.outage.isOn
    ? gettext("The server cannot reach its database. Trying again in %(n)s s; you can go on writing.")
    : gettext("No connection to the server. Trying again in %(n)s s; you can go on writing.");
  banner.querySelector("span").textContent = fill(sentence, { n: Math.max(1, Math.round(delayMs / 1000)) });
  banner.querySelector("button").hidden = false;
}

function hideBanner(news) {
  const banner = byId("banner");
  if (!banner.hidden) announce(news);
  banner.hidden = true;
  clearTimeout(bannerTimer);
  bannerTimer = null;
}

function loggedOut() {
  const dialog = byId("login-dialog");
  const next = new URLSearchParams({ next: location.pathname });
  dialog.querySelector("[data-login]").href = `${urls.login}?${next}`;
  if (!dialog.open) dialog.showModal();
}

/** The socket says that its session has ended; after a change of password the page may have a new one. */
async function checkSession() {
  try {
    await requests.json(urls.engine);
    socket.open();
  } catch (error) {
    if (error.code === "offline" || error.code === "storage_unavailable") socket.open();
    else loggedOut();
  }
}

// --- what a person does

function listen() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (!button) return;
    if (button.matches("a")) event.preventDefault(); // the address stays that of the conversation
    act(button.dataset.action, button);
  });
  document.addEventListener("keydown", pressed);
  for (const starter of document.querySelectorAll(".starter")) {
    starter.addEventListener("click", () => composer.set(starter.dataset.starter));
  }
  byId("banner").querySelector("button").addEventListener("click", () => {
    socket.retryNow();
    conversation.following.outage.askNow();
  });
  byId("older").querySelector("button").addEventListener("click", () => attempt(() => conversation.reading.loadOlder()));
  new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting && !byId("older").hidden) attempt(() => conversation.reading.loadOlder());
  }, { root: byId("scroller"), rootMargin: "400px 0px 0px 0px" }).observe(byId("older"));
  new ResizeObserver(() => follower.pin()).observe(byId("scroller"));
  addEventListener("unhandledrejection", (event) => {
    if (!(event.reason instanceof RequestError)) return;
    event.preventDefault();
    if (event.reason.code !== "storage_unavailable") report(event.reason); // else the banner says so
  });
  document.addEventListener("visibilitychange", async () => {
    // Logged in again in another tab: a fresh page has the new session's token; drafts and unsent messages are kept.
    if (document.visibilityState === "visible" && byId("login-dialog").open && (await hasSession())) location.reload();
  });
}

async function hasSession() {
  try {
    await requests.json(urls.engine);
    return true;
  } catch {
    return false; // the dialog is open: nothing to add
  }
}

function act(action, button) {
  const article = button.closest(".message");
  const id = article?.dataset.message;
  const client = article?.dataset.client;
  const actions = {
    copy: () => attempt(() => copyMessage(article, button)),
    "copy-code": () => attempt(async () => {
      await copy(Promise.resolve(button.closest(".code").querySelector("pre").innerText.replace(/\n$/, "")));
      confirmOn(button);
    }),
    edit: () => editMessage(article),
    regenerate: () => conversation.regenerate(id),
    retry: () => conversation.continue(id),
    continue: () => conversation.continue(id),
    branch: () => attempt(() => conversation.branch(button.dataset.target)),
    stats: () => showNumbers(byId("stats-card"), button, statsOf(article), (target) => attempt(() => goTo(target))),
    "go-to": () => attempt(() => goTo(button.dataset.target)),
    "go-to-window": () => {
      byId("window-card").hidePopover();
      attempt(() => goTo(contextWindow.start, contextWindow.edge));
    },
    resend: () => conversation.resend(client),
    "take-back": () => conversation.takeBack(client),
    help: () => byId("help-dialog").showModal(),
    window: () => policy.open(),
    "choose-model": () => byId("model-select").focus(),
    rename: () => { if (button.id === "title") sidebar.rename({ id: conversation.id, title: conversation.title }); },
  };
  actions[action]?.();
}

async function copyMessage(article, button) {
  await copy(requests.text(urls.text(conversation.id, article.dataset.message)));
  confirmOn(button);
  announce(gettext("Copied"));
}

/** Bring a message into view, or what stands above it, loading what lies between. */
async function goTo(name, above = null) {
  const article = name === null ? above : await bringing.bring(name);
  if (article) follower.goTo(above?.isConnected ? above : article);
}

/** True when there was a message to edit, or a reason why not was given. */
function editMessage(article) {
  if (!article) return false;
  if (conversation.isRunning) {
    notify(whyNoEdit());
    return true;
  }
  attempt(async () => {
    const text = await requests.text(urls.text(conversation.id, article.dataset.message));
    openEditor(article, text);
  });
  return true;
}

function openEditor(article, text) {
  edit(article, text, page.limits.messageChars, (changed) => conversation.edit(article.dataset.message, changed));
}

async function attempt(action) {
  try {
    await action();
  } catch (error) {
    report(error);
  }
}

function report(error) {
  if (error.code !== "unauthenticated") notify(error.message); // for that there is a dialog
}

function pressed(event) {
  const name = shortcut(event);
  if (name === "escape") {
    if (isSomethingOpen() || sidebar.closeSheet() || bringing.cancel()) return;
    if (conversation.isRunning) conversation.stop();
    return;
  }
  if (!name || !page.hasShortcuts || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  const commands = {
    composer: () => composer.focus(),
    new: () => location.assign(urls.home),
    search: () => sidebar.focusSearch(),
    sidebar: () => sidebar.toggle(),
    help: () => byId("help-dialog").showModal(),
    copy: () => {
      const last = transcript.lastOf("assistant");
      if (last) attempt(() => copyMessage(last, last.querySelector('[data-action="copy"]')));
    },
  };
  commands[name]();
}
