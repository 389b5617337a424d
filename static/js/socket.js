/* The one WebSocket of a page: reconnects with back-off and jitter, notices a dead line, knows the size of a frame.

   The border: it carries frames and knows nothing of what is in them, apart from ping, pong and server.draining. */

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 30_000;
const PING_EVERY_MS = 20_000;
const PONG_WITHIN_MS = 10_000;
const STABLE_AFTER_MS = 5_000;
const CLOSE_UNAUTHENTICATED = 4401;

/** Milliseconds before attempt `attempt` (0 is the first retry): doubled each time, half of it random. */
export function retryDelay(attempt, random) {
  const delay = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** attempt);
  return delay / 2 + (delay / 2) * random();
}

export class Socket {
  #socket = null;
  #attempt = 0;
  #openedAt = Infinity;
  #timers = {};
  #isWanted = false;

  /** onOpen(), onFrame(frame), onWaiting(ms before the next attempt), onLoggedOut(). */
  constructor(url, maxFrameBytes, handlers) {
    this.url = url;
    this.maxFrameBytes = maxFrameBytes;
    this.handlers = handlers;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#check();
    });
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.open();
    });
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  open() {
    this.#isWanted = true;
    this.#connect();
  }

  close() {
    this.#isWanted = false;
    this.#clearTimers();
    this.#socket?.close(1000);
  }

  /** Whether `frame` is small enough to be sent at all. */
  fits(frame) {
    return new TextEncoder().encode(JSON.stringify(frame)).length <= this.maxFrameBytes;
  }

  /** False when the line is down: the caller keeps what it wanted to say. */
  send(frame) {
    if (!this.isOpen) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  retryNow() {
    if (!this.#isWanted || this.#socket !== null) return;
    clearTimeout(this.#timers.retry);
    this.#connect();
  }

  #connect() {
    if (this.#socket !== null) return;
    const socket = new WebSocket(this.url);
    this.#socket = socket;
    socket.addEventListener("open", () => {
      this.#openedAt = performance.now();
      this.#timers.ping = setInterval(() => this.#check(), PING_EVERY_MS);
      this.handlers.onOpen();
    });
    socket.addEventListener("message", (event) => {
      clearTimeout(this.#timers.pong);
      this.handlers.onFrame(JSON.parse(event.data));
    });
    socket.addEventListener("close", (event) => this.#lost(socket, event.code));
  }

  /** Ask for a sign of life; without one the line counts as lost. */
  #check() {
    if (!this.send({ type: "ping" })) return this.retryNow();
    clearTimeout(this.#timers.pong);
    this.#timers.pong = setTimeout(() => this.#lost(this.#socket, 0), PONG_WITHIN_MS);
    return undefined;
  }

  #lost(socket, code) {
    if (socket === null || socket !== this.#socket) return;
    this.#socket = null;
    this.#clearTimers();
    socket.close();
    if (code === CLOSE_UNAUTHENTICATED) {
      this.#isWanted = false;
      this.handlers.onLoggedOut();
    }
    if (!this.#isWanted) return;
    // Not on opening: a server that accepts and hangs up at once would be called without a pause.
    if (performance.now() - this.#openedAt > STABLE_AFTER_MS) this.#attempt = 0;
    this.#openedAt = Infinity;
    const delay = retryDelay(this.#attempt, Math.random);
    this.#attempt += 1;
    this.#timers.retry = setTimeout(() => this.#connect(), delay);
    this.handlers.onWaiting(delay);
  }

  #clearTimers() {
    clearInterval(this.#timers.ping);
    clearTimeout(this.#timers.pong);
    clearTimeout(this.#timers.retry);
  }
}
