/* The list of conversations: search, the archive, the menu of a row; a sheet on narrow screens. */

import { announce, openNextTo } from "./floating.js";
import { fill, gettext } from "./i18n.js";
import { onEnter } from "./keys.js";

const SEARCH_AFTER_MS = 200;
const NARROW = "(max-width: 52rem)";

export class Sidebar {
  refreshTimer;
  #query = "";
  #asked = 0; // how often the list was asked for
  #onTheWay = 0; // answers to that
  #isArchive = false; // shown instead of the list
  #searchTimer;

  /** onArchived(id, isArchived), onRenamed(id, title), onDeleted(id): what the rest of the page has to know. */
  constructor({ urls, requests, store, current, onArchived, onRenamed, onDeleted }) {
    Object.assign(this, { urls, requests, store, onArchived, onRenamed, onDeleted });
    this.current = current;
    this.shell = document.getElementById("shell");
    this.element = document.getElementById("sidebar");
    this.list = document.getElementById("conversations");
    this.menu = document.getElementById("row-menu");
    this.#prepareSheet();
    this.#prepareSearch();
    this.#prepareMenu();
  }

  // --- showing and hiding

  toggle() {
    if (matchMedia(NARROW).matches) this.#setSheet(!this.shell.classList.contains("is-sheet-open"));
    else this.#setCollapsed(!this.shell.classList.contains("is-collapsed"));
  }

  focusSearch() {
    if (matchMedia(NARROW).matches) this.#setSheet(true);
    else this.#setCollapsed(false);
    document.getElementById("search-text").focus();
  }

  /** True when there was an open sheet to close. */
  closeSheet() {
    if (!this.shell.classList.contains("is-sheet-open")) return false;
    this.#setSheet(false);
    return true;
  }

  #prepareSheet() {
    this.#setCollapsed(this.store.get("sidebar-collapsed", false));
    for (const button of document.querySelectorAll('[data-action="sidebar"]')) button.addEventListener("click", () => this.toggle());
    document.getElementById("scrim").addEventListener("click", () => this.closeSheet());
    matchMedia(NARROW).addEventListener("change", () => this.#setSheet(false));
  }

  #setSheet(isOpen) {
    const wasOpen = this.shell.classList.contains("is-sheet-open");
    this.shell.classList.toggle("is-sheet-open", isOpen);
    document.getElementById("main").inert = isOpen;
    this.#tellButtons();
    if (isOpen) this.element.querySelector('[data-action="sidebar"]').focus();
    else if (wasOpen) document.querySelector('#main [data-action="sidebar"]').focus();
  }

  #setCollapsed(isCollapsed) {
    this.shell.classList.toggle("is-collapsed", isCollapsed);
    this.store.set("sidebar-collapsed", isCollapsed);
    this.#tellButtons();
  }

  #tellButtons() {
    const isVisible = matchMedia(NARROW).matches ? this.shell.classList.contains("is-sheet-open") : !this.shell.classList.contains("is-collapsed");
    for (const button of document.querySelectorAll('[data-action="sidebar"]')) button.setAttribute("aria-expanded", String(isVisible));
  }

  // --- the list

  #prepareSearch() {
    const form = document.getElementById("search");
    const field = document.getElementById("search-text");
    form.addEventListener("submit", (event) => event.preventDefault());
    onEnter(field, () => this.list.querySelector(".conversation-row > a")?.click());
    field.addEventListener("input", () => {
      clearTimeout(this.#searchTimer);
      this.#searchTimer = setTimeout(() => {
        this.#query = field.value.trim();
        this.refresh();
      }, SEARCH_AFTER_MS);
    });
    this.archiveToggle = document.getElementById("archive-toggle");
    this.archiveToggle.addEventListener("click", () => this.#showArchive(!this.#isArchive));
    this.list.addEventListener("click", (event) => {
      const more = event.target.closest("[data-next]");
      if (more) this.#more(more);
    });
  }

  #showArchive(isShown) {
    this.#isArchive = isShown;
    this.archiveToggle.setAttribute("aria-pressed", String(isShown));
    return this.refresh();
  }

  /** Read the list again from the server. */
  async refresh() {
    const number = ++this.#asked;
    this.#onTheWay += 1;
    let html;
    try {
      html = await this.requests.text(this.#address(this.#query, ""));
    } finally {
      this.#onTheWay -= 1;
    }
    if (number !== this.#asked) return; // asked again meanwhile, and the newer answer may have come first
    this.list.innerHTML = html; // drawn by the server, titles escaped
    this.setCurrent(this.current);
  }

  /** A row has changed here: a list that is on its way may not know of it. */
  #changed() {
    if (this.#onTheWay) this.refresh();
  }

  /** The same, once for several reasons to do so. */
  refreshSoon() {
    clearTimeout(this.refreshTimer);
    this.refreshTimer = setTimeout(() => this.refresh(), 400);
  }

  /** A conversation got a turn: its row goes to the top, without asking the server if it is known. */
  touch(id) {
    const row = this.row(id);
    const today = this.list.querySelector('[data-group="today"] ul');
    if (this.#isArchive || !row || (!today && !("pinned" in row.dataset))) return this.refresh();
    const section = row.closest("section");
    if ("pinned" in row.dataset) section.querySelector("ul").prepend(row);
    else today.prepend(row);
    if (!section.querySelector("li")) section.remove();
    return this.#changed();
  }

  async #more(more) {
    const button = more.querySelector("button");
    const template = document.createElement("template");
    button.disabled = true;
    try {
      template.innerHTML = await this.requests.text(this.#address(this.#query, more.dataset.next));
    } finally {
      button.disabled = false;
    }
    if (!more.isConnected) return; // the list has been read again meanwhile
    for (const section of template.content.querySelectorAll("section")) {
      const known = this.list.querySelector(`section[data-group="${section.dataset.group}"] ul`);
      if (known) known.append(...section.querySelectorAll("li"));
      else more.before(section);
    }
    more.replaceWith(template.content.querySelector("[data-next]") ?? "");
    this.setCurrent(this.current);
  }

  #address(query, cursor) {
    return `${this.urls.conversations}?${new URLSearchParams({ q: query, cursor, archived: this.#isArchive ? "on" : "" })}`;
  }

  row(id) {
    return this.list.querySelector(`[data-conversation="${CSS.escape(id)}"]`);
  }

  setCurrent(id) {
    this.current = id;
    for (const row of this.list.querySelectorAll(".conversation-row")) {
      const isCurrent = row.dataset.conversation === id;
      row.classList.toggle("is-current", isCurrent);
      if (isCurrent) row.querySelector("a").setAttribute("aria-current", "page");
      else row.querySelector("a").removeAttribute("aria-current");
    }
  }

  setRunning(id, isRunning) {
    this.row(id)?.classList.toggle("is-running", isRunning);
    this.#changed();
  }

  setTitle(id, title) {
    const row = this.row(id);
    if (!row || !title) return;
    row.querySelector(".title").textContent = title;
    row.querySelector("a").title = title;
    row.querySelector("button").setAttribute("aria-label", fill(gettext("More about “%(title)s”"), { title }));
    this.#changed();
  }

  remove(id) {
    const row = this.row(id);
    const section = row?.closest("section");
    row?.remove();
    if (section && !section.querySelector("li")) section.remove();
    this.#changed();
  }

  // --- what can be done with a row

  #prepareMenu() {
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest('[data-action="row-menu"]');
      if (!button) return;
      this.chosen = this.#describe(button.closest("li"));
      this.menu.classList.toggle("is-pinned", this.chosen.isPinned);
      this.menu.classList.toggle("is-archived", this.chosen.isArchived);
      openNextTo(this.menu, button);
    });
    this.menu.addEventListener("click", (event) => {
      const action = event.target.closest("[data-action]")?.dataset.action;
      if (!action) return;
      this.menu.hidePopover();
      if (action === "pin") this.#pin(this.chosen);
      if (action === "archive") this.#archive(this.chosen);
      if (action === "rename") this.rename(this.chosen);
      if (action === "delete") this.delete(this.chosen);
    });
    this.#prepareRename();
    this.#prepareDelete();
  }

  #describe(row) {
    return {
      id: row.dataset.conversation, title: row.querySelector(".title").textContent,
      isPinned: "pinned" in row.dataset, isArchived: "archived" in row.dataset,
    };
  }

  async #pin({ id, isPinned }) {
    await this.requests.post(this.urls.pin(id), { is_pinned: isPinned ? "" : "on" });
    await this.refresh();
  }

  async #archive({ id, title, isArchived }) {
    await this.requests.post(this.urls.archive(id), { is_archived: isArchived ? "" : "on" });
    this.remove(id);
    this.archiveToggle.focus(); // where it has gone, or come from
    this.onArchived(id, !isArchived);
    announce(fill(isArchived ? gettext("“%(title)s” is in the list again") : gettext("“%(title)s” has been archived"), { title }));
    await this.refresh();
  }

  rename(conversation) {
    const dialog = document.getElementById("rename-dialog");
    const field = document.getElementById("rename-text");
    this.renamed = conversation;
    field.value = conversation.title;
    dialog.querySelector(".errorlist").textContent = "";
    dialog.showModal();
    field.select();
  }

  #prepareRename() {
    const dialog = document.getElementById("rename-dialog");
    const field = document.getElementById("rename-text");
    const confirm = () => this.#answer(dialog, async () => {
      const { title } = await this.requests.post(this.urls.rename(this.renamed.id), { title: field.value });
      this.setTitle(this.renamed.id, title);
      this.onRenamed(this.renamed.id, title);
    });
    onEnter(field, confirm);
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      confirm();
    });
  }

  delete(conversation) {
    const dialog = document.getElementById("delete-dialog");
    this.deleted = conversation;
    document.getElementById("delete-text").textContent = fill(
      gettext("“%(title)s” and all its messages are removed for good."), { title: conversation.title },
    );
    dialog.querySelector(".errorlist").textContent = "";
    dialog.showModal();
  }

  #prepareDelete() {
    const dialog = document.getElementById("delete-dialog");
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#answer(dialog, async () => {
        await this.requests.post(this.urls.delete(this.deleted.id), {});
        this.remove(this.deleted.id);
        this.onDeleted(this.deleted.id);
      });
    });
  }

  /** Do it and close the dialog, or say in the dialog why not. */
  async #answer(dialog, action) {
    const submit = dialog.querySelector('[type="submit"]');
    submit.disabled = true;
    try {
      await action();
      dialog.close();
    } catch (error) {
      dialog.querySelector(".errorlist").textContent = error.message;
    } finally {
      submit.disabled = false;
    }
  }
}
