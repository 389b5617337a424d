/* The conversation of this page: what goes out, what comes in, and who draws it.

   Every frame is taken by the ids that it carries: nothing about another conversation is ever drawn here. */

import { Edits } from "./edits.js";
import { announce, alarm, notify } from "./floating.js";
import { Following } from "./following.js";
import { lengthText } from "./format.js";
import { fill, gettext } from "./i18n.js";
import { newId } from "./ids.js";
import { Preparing } from "./preparing.js";
import * as message from "./message.js";
import * as outbox from "./outbox.js";
import { Reading } from "./reading.js";
import { applyFrame, newTurn } from "./turns.js";

const HIDDEN_PAINT_MS = 300; // a hidden tab gets no animation frames, and must still acknowledge what it was sent
const OWN_HINT_MS = 1500; // a hint that close after news of a turn tells nothing new

export class Conversation {
  #turns = new Map();
  #dirty = new Map();
  #paintTimer = null;
  #newsAt = 0;

  constructor({ page, urls, socket, store, requests, transcript, pending, follower, composer, sidebar, model, choice, contextWindow, onEditRefused, onOutage, onOutageOver }) {
    Object.assign(this, { choice, contextWindow, onEditRefused, urls, socket, store, requests, transcript, pending, follower, composer, sidebar, model });
    this.entries = store.get("outbox", []);
    this.edits = new Edits(store);
    this.reading = new Reading({ conversation: this, older: page.older, requests, urls, transcript, follower });
    this.following = new Following({ conversation: this, socket, reading: this.reading, onOutage, onOutageOver });
    this.isStored = page.conversation !== null;
    this.id = page.conversation ?? outbox.firstNew(this.entries)?.conversation ?? newId();
    this.title = page.title;
    this.readsDrafts = page.readsDrafts;
    this.preparing = new Preparing(composer, model, page.isArchived);
    composer.keepDraft(this.isStored ? this.id : "new");
    this.#drawOutbox();
    this.#showRunning();
  }

  get isRunning() {
    return this.transcript.running !== null;
  }

  // --- what a person does

  /** Takes the text unless no frame can carry it. */
  send(text) {
    const clientId = newId();
    const isNew = !this.isStored && outbox.of(this.entries, this.id).length === 0;
    const chosen = isNew ? this.choice.forNew : {};
    const entries = outbox.add(this.entries, { clientId, conversation: this.id, text, isNew, ...chosen });
    if (!this.socket.fits(outbox.frameOf(outbox.find(entries, clientId)))) {
      notify(gettext("The message is too large to be sent in one piece."));
      return false;
    }
    this.#keep(entries);
    this.follower.toEnd();
    this.#flush();
    return true;
  }

  resend(clientId) {
    this.#keep(outbox.waiting(this.entries, clientId));
    this.#flush();
  }

  takeBack(clientId) {
    const entry = outbox.find(this.entries, clientId);
    this.#keep(outbox.remove(this.entries, clientId));
    this.composer.takeBack(entry.text);
  }

  stop() {
    const { running } = this.transcript;
    if (running) this.#ask({ type: "turn.stop", conversation: this.id, message: running.dataset.message });
  }

  regenerate(id) {
    this.#ask({ type: "turn.regenerate", conversation: this.id, message: id, client_id: newId() });
  }

  continue(id) {
    this.#ask({ type: "turn.continue", conversation: this.id, message: id });
  }

  /** Let the engine read along; null takes it back. False when that cannot be told, or would be of no use, now. */
  draft(text) {
    const isFirst = !this.isStored;
    if (!this.readsDrafts || this.isRunning || (isFirst && outbox.of(this.entries, this.id).length > 0)) return false;
    const chosen = isFirst ? this.choice.forNew : {};
    const frame = { type: "draft.warm", conversation: this.id, text, is_new: isFirst, ...chosen };
    return this.socket.fits(frame) && this.socket.send(frame);
  }

  /** Let the server count what the window would hold with this draft. False when it cannot be asked now. */
  count(number) {
    if (this.isRunning || (!this.isStored && outbox.of(this.entries, this.id).length > 0)) return false;
    const { text } = this.composer;
    const chosen = this.isStored ? {} : this.choice.forNew;
    const frame = { type: "window.count", conversation: this.id, number, text: text || null, is_new: !this.isStored, ...chosen };
    return this.socket.fits(frame) && this.socket.send(frame);
  }

  /** It has been put away, or taken back out. */
  setArchived(isArchived) {
    this.preparing.setArchived(isArchived);
  }

  /** False when the text was not taken and the editor has to stay open. */
  edit(id, text) {
    const frame = { type: "turn.edit", conversation: this.id, message: id, client_id: newId(), text };
    if (!this.socket.fits(frame)) {
      notify(gettext("The message is too large to be sent in one piece."));
      return false;
    }
    if (!this.socket.isOpen) {
      notify(gettext("There is no connection to the server at the moment."));
      return false;
    }
    this.edits.add(frame);
    this.#flush();
    return true;
  }

  async branch(target) {
    const answer = await this.requests.post(this.urls.branch(this.id), { message: target });
    this.#newsAt = performance.now();
    this.reading.draw(answer);
  }

  modelChanged() {
    this.#drawOutbox();
    this.#flush();
  }

  // --- the line

  opened(isFirst) {
    if (!isFirst) this.model.refresh(); // the server may be another one than before
    this.#keep(outbox.allWaiting(this.entries));
    this.edits.waitAll();
    if (this.isStored) this.choice.sync();
    this.following.opened(isFirst);
    this.#flush();
    this.composer.retellDraft();
    this.contextWindow.lost();
    this.contextWindow.changed();
  }

  lost() {
    this.following.lost();
    this.contextWindow.lost();
    this.preparing.clear();
    this.#drawOutbox();
  }

  frame(frame) {
    switch (frame.type) {
      case "turn.accepted": return this.#accepted(frame);
      case "turn.snapshot":
      case "turn.stage":
      case "turn.delta":
      case "turn.end": return this.#progressed(frame);
      case "conversation.changed": return this.#changed(frame);
      case "prepared": return frame.conversation === this.id && this.preparing.show(frame);
      case "window.counted": return frame.conversation === this.id && this.contextWindow.counted(frame);
      case "error": return this.#refused(frame);
      case "pong": return this.following.ponged();
      default: return undefined; // server.draining: the line will close, and be opened again
    }
  }

  /** It was not followed for a while: what else is on the page may be old, too. */
  missed() {
    this.model.refresh();
    this.sidebar.refreshSoon();
    this.choice.sync();
    this.contextWindow.changed();
    this.#flush();
  }

  /** Something that is worth nothing later: it is refused, not kept, when the line is down. */
  #ask(frame) {
    const isSent = this.socket.send(frame);
    if (!isSent) notify(gettext("There is no connection to the server at the moment."));
    return isSent;
  }

  #accepted(frame) {
    this.edits.remove(frame.client_id);
    const entry = outbox.find(this.entries, frame.client_id);
    if (entry) this.#keep(outbox.remove(this.entries, frame.client_id));
    if (frame.conversation !== this.id) return this.sidebar.touch(frame.conversation);
    this.#newsAt = performance.now();
    this.choice.clear();
    this.preparing.turnBegan();
    if (!this.isStored) this.#becomeStored();
    this.#setTitle(frame.title);
    this.sidebar.touch(this.id);
    if (frame.is_duplicate || (!entry && frame.client_id !== null)) return this.reading.again(); // versions change: the server draws them
    this.#turns.set(frame.message, newTurn(frame.message));
    if (entry) {
      this.transcript.addUser(frame.user_message, frame.user_html, frame.recalled);
      this.transcript.addAssistant(frame.message);
    } else {
      message.open(this.transcript.get(frame.message));
    }
    this.#showRunning();
    this.follower.pin();
    announce(gettext("The reply is being written"));
    return undefined;
  }

  #progressed(frame) {
    if (frame.conversation !== this.id) return;
    this.#newsAt = performance.now();
    const known = this.#turns.get(frame.message);
    if (frame.type === "turn.snapshot") this.following.snapshot();
    const { turn, changed, verdict } = applyFrame(known ?? newTurn(frame.message), frame);
    if (verdict === "gap") this.following.watch();
    if (verdict !== "applied") return;
    if (turn.stage === "storing" && turn.problem !== known?.problem) alarm(turn.problem);
    this.#turns.set(frame.message, turn);
    const indices = this.#dirty.get(frame.message) ?? new Set();
    for (const index of changed) indices.add(index);
    this.#dirty.set(frame.message, indices);
    this.#schedulePaint();
  }

  #changed(frame) {
    if (frame.is_deleted) {
      this.sidebar.remove(frame.conversation);
      if (frame.conversation === this.id) this.gone();
      return;
    }
    if (frame.title) this.sidebar.setTitle(frame.conversation, frame.title);
    if (frame.conversation !== this.id) {
      this.sidebar.refreshSoon();
      return;
    }
    this.contextWindow.changed(); // a summary may have been written
    const isNamed = frame.title && frame.title !== this.title;
    if (frame.title) this.#setTitle(frame.title);
    if (isNamed) return; // that was the news: nothing of the transcript has to be read again
    if (!this.isStored || performance.now() - this.#newsAt <= OWN_HINT_MS) return;
    this.sidebar.refreshSoon(); // pinned or put away in another tab, perhaps
    this.reading.again();
    this.choice.sync();
  }

  async #refused(frame) {
    if (frame.code === "storage_unavailable") {
      this.following.outage.refused();
      if (!frame.client_id) return undefined; // the page asks for it again, and the banner says so
    }
    const entry = outbox.find(this.entries, frame.client_id);
    if (!entry) {
      const edit = this.edits.find(frame.client_id);
      if (edit && frame.code !== "conflict" && (await this.#canWait(frame, edit))) return this.edits.wait(edit.client_id);
      const isFull = frame.code === "window_full" && frame.conversation === this.id;
      if (!isFull) notify(frame.message);
      this.edits.remove(frame.client_id);
      if (frame.conversation === this.id && this.isStored) await this.reading.again();
      if (isFull) this.contextWindow.refused(frame.message);
      if (edit) this.onEditRefused(edit.message, edit.text); // what has been written is not lost
      return undefined;
    }
    if (frame.code === "window_full" && entry.conversation === this.id) {
      this.takeBack(entry.clientId);
      this.contextWindow.refused(frame.message);
    } else if (await this.#canWait(frame, entry)) this.#keep(outbox.waiting(this.entries, entry.clientId));
    else {
      this.#keep(outbox.refused(this.entries, entry.clientId, frame.message));
      alarm(frame.message);
    }
    this.follower.pin();
    return undefined;
  }

  /** Whether a refused send goes out again by itself: when the model is there, the reply has ended, the server is back. */
  async #canWait({ code }, entry) {
    if (code === "draining" || code === "unauthenticated") return true;
    if (code === "engine_unavailable") {
      await this.model.refresh();
      return this.model.state.state === "loading";
    }
    if (code !== "conflict") return false;
    if (entry.conversation !== this.id) return true; // its own page will see the end of that reply
    await this.reading.again();
    return this.isRunning;
  }

  // --- the outbox

  #flush() {
    if (!this.socket.isOpen) return this.#drawOutbox();
    for (const frame of this.edits.take(this.id)) this.socket.send(frame);
    for (const conversation of new Set(this.entries.map((entry) => entry.conversation))) {
      const isRunning = conversation === this.id && this.isRunning;
      const entry = outbox.next(this.entries, conversation, isRunning);
      if (!entry) continue;
      const parent = conversation === this.id ? this.transcript.leaf : null;
      if (conversation !== this.id && !entry.hasGoneOut && !entry.isNew) continue; // waits for its own page
      this.#keep(outbox.sent(this.entries, entry.clientId, parent));
      this.socket.send(outbox.frameOf(outbox.find(this.entries, entry.clientId)));
    }
    return this.#drawOutbox();
  }

  #keep(entries) {
    this.entries = entries;
    this.store.set("outbox", entries);
    this.#drawOutbox();
  }

  #drawOutbox() {
    const entries = outbox.of(this.entries, this.id);
    document.getElementById("main").classList.toggle("is-empty", !this.isStored && entries.length === 0);
    this.pending.draw(entries, this.#whyWaiting());
  }

  #whyWaiting() {
    if (!this.socket.isOpen) return gettext("Will be sent when the connection is back");
    return this.isRunning ? gettext("Will be sent when the reply has ended") : gettext("Will be sent in its turn");
  }

  // --- drawing

  #schedulePaint() {
    if (this.#paintTimer !== null) return;
    const paint = () => {
      clearTimeout(this.#paintTimer);
      this.#paintTimer = null;
      this.#paint();
    };
    this.#paintTimer = setTimeout(paint, HIDDEN_PAINT_MS);
    requestAnimationFrame(() => {
      if (this.#paintTimer !== null) paint();
    });
  }

  #paint() {
    const dirty = [...this.#dirty];
    this.#dirty.clear();
    for (const [id, indices] of dirty) {
      const turn = this.#turns.get(id);
      const article = this.transcript.get(id);
      this.socket.send({ type: "ack", message: id, seq: turn.seq });
      if (!article) {
        this.reading.again(); // begun in another tab: the messages around it are not here yet
        continue;
      }
      message.paint(article, turn, [...indices].sort((a, b) => a - b));
      if (turn.isOver) this.#ended(article, turn);
    }
    this.#showRunning();
    this.follower.pin();
  }

  #ended(article, turn) {
    this.#turns.delete(turn.message);
    this.model.refresh();
    this.contextWindow.changed();
    if (turn.status === "failed") alarm(turn.error || gettext("The reply failed."));
    else announce(fill(gettext("Reply complete, %(length)s"), { length: lengthText(message.plainText(article)) }));
    queueMicrotask(() => this.#flush());
  }

  #showRunning() {
    this.composer.setRunning(this.isRunning);
    this.transcript.allowEdits(!this.isRunning);
    if (this.isStored) this.sidebar.setRunning(this.id, this.isRunning);
  }

  /** The end of the conversation has been drawn as the server has it: what is running there goes on top. */
  drawn() {
    for (const [id, turn] of this.#turns) {
      const article = this.transcript.get(id);
      if (article?.classList.contains("is-open")) message.paint(article, turn, [...turn.blocks.keys()]);
      else if (article) this.#settle(turn); // it has ended, perhaps while the line was down
    }
    this.contextWindow.drawn();
    this.contextWindow.changed();
    this.#showRunning();
    this.follower.pin();
    this.#flush();
  }

  /** Older messages have been drawn above the others. */
  olderDrawn() {
    this.transcript.allowEdits(!this.isRunning);
    this.contextWindow.drawn();
  }

  /** A turn whose end is on the page already, as the server drew it: what was still to be drawn is not. */
  #settle(turn) {
    if (this.#dirty.delete(turn.message)) this.socket.send({ type: "ack", message: turn.message, seq: turn.seq });
    this.#turns.delete(turn.message);
  }

  #becomeStored() {
    this.isStored = true;
    history.replaceState(null, "", this.urls.conversation(this.id));
    this.composer.renameDraft(this.id);
    document.getElementById("main").classList.remove("is-empty");
    document.getElementById("title").hidden = false;
    this.choice.settle();
    this.sidebar.setCurrent(this.id);
  }

  /** Show a title that is stored already. */
  showTitle(title) {
    this.#setTitle(title);
  }

  #setTitle(title) {
    this.title = title || gettext("Untitled");
    document.querySelector("#title > span").textContent = this.title;
    document.getElementById("page-heading").textContent = this.title;
    document.title = `${this.title} · Recollect`;
    this.sidebar.setTitle(this.id, this.title);
  }

  /** The conversation has been deleted, here or in another tab. */
  gone() {
    this.#keep(this.entries.filter((entry) => entry.conversation !== this.id));
    this.edits.removeAll(this.id);
    location.assign(this.urls.home);
  }
}
