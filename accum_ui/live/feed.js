// One poller a run and browser tab: it holds every point that came, and tells the parts of the page what is new.

// Milliseconds between two looks: eager until the first point, slow when hidden, ended or cut off.
const EAGER = 150, FAST = 500, SLOW = 5000;
const ENDED = ["done", "failed", "stopped"];

class Feed {
  constructor(runId) {
    this.runId = runId;
    this.listeners = new Set();
    this.latest = null;
    this.timer = 0;
    this.onVisible = () => { if (!document.hidden) this.soon(); };
    this.clear();
  }

  clear() {
    this.revision = null;
    this.tables = { run: {}, reference: {}, distance: {}, layers: { names: [], errors: [] }, memory: {} };
    this.pictures = { run: null, reference: null };
    this.since = 0;
    this.referenceSince = 0;
  }

  listen(listener) {
    this.listeners.add(listener);
    if (this.listeners.size === 1) {
      document.addEventListener("visibilitychange", this.onVisible);
      this.soon();
    } else if (this.latest) listener(this, null);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) {
        clearTimeout(this.timer);
        document.removeEventListener("visibilitychange", this.onVisible);
        FEEDS.delete(this.runId);
      }
    };
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), 0);
  }

  async poll() {
    if (this.polling) return;
    this.polling = true;
    let pause = SLOW, problem = null;
    try {
      const query = `since=${this.since}&reference_since=${this.referenceSince}`;
      const reply = await fetch(new URL(`api/runs/${encodeURIComponent(this.runId)}?${query}`, document.baseURI));
      const news = await reply.json();
      if (!reply.ok) problem = news.error;
      else pause = this.take(news);
    } catch {
      problem = "The app does not answer; the curves go on as soon as it does.";
      pause = 1500;
    }
    this.polling = false;
    for (const listener of this.listeners) listener(this, problem);
    clearTimeout(this.timer);
    if (this.listeners.size) this.timer = setTimeout(() => this.poll(), pause);
  }

  // Returns the milliseconds to the next look.
  take(news) {
    if (this.revision !== null && this.revision !== news.revision) {
      this.clear(); // what was drawn is no longer true: fetch it anew
      this.revision = news.revision;
      return 0;
    }
    this.revision = news.revision;
    this.latest = news;
    append(this.tables.run, news.run);
    append(this.tables.distance, news.distance);
    const { names, ...rows } = news.layers;
    append(this.tables.layers, rows);
    if (names.length) this.tables.layers.names = names;
    this.tables.memory = news.memory;
    this.since = news.run.update.at(-1) ?? this.since;
    if (news.reference) {
      append(this.tables.reference, news.reference.columns);
      this.referenceSince = news.reference.columns.update.at(-1) ?? this.referenceSince;
    }
    for (const who of ["run", "reference"]) this.pictures[who] = news.pictures[who] ?? this.pictures[who];
    const over = ENDED.includes(news.state) && (!news.reference || ENDED.includes(news.reference.state));
    if (document.hidden || over) return SLOW;
    return news.state === "running" && news.update === 0 ? EAGER : FAST;
  }
}

function append(table, columns) {
  for (const [name, values] of Object.entries(columns)) {
    const held = (table[name] ??= []);
    for (const value of values) held.push(value);
  }
}

// On the window, as each mounted part of the page may bring its own copy of this script.
const FEEDS = (window.accumulationFeeds ??= new Map());

function feedOf(runId) {
  if (!FEEDS.has(runId)) FEEDS.set(runId, new Feed(runId));
  return FEEDS.get(runId);
}
