/* What this browser keeps for one person: drafts and unsent messages. Nothing here is the only copy of something sent. */

export class Store {
  /** `onFailure` is told when the browser refuses to keep something (full, or storage switched off). */
  constructor(person, onFailure) {
    this.prefix = `recollect:${person}:`;
    this.onFailure = onFailure;
  }

  get(name, fallback) {
    try {
      const text = localStorage.getItem(this.prefix + name);
      return text === null ? fallback : JSON.parse(text);
    } catch (error) {
      this.onFailure(error);
      return fallback;
    }
  }

  set(name, value) {
    try {
      localStorage.setItem(this.prefix + name, JSON.stringify(value));
    } catch (error) {
      this.onFailure(error);
    }
  }

  remove(name) {
    try {
      localStorage.removeItem(this.prefix + name);
    } catch (error) {
      this.onFailure(error);
    }
  }

  /** Call `changed` when another tab writes `name`. */
  onChange(name, changed) {
    addEventListener("storage", (event) => {
      if (event.key === this.prefix + name) changed();
    });
  }
}
