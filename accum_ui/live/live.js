// The live part of the Lab. `data.part` says which: "answer" (the sentence under the title) or "charts" (the rest).

const MOUNTED = new WeakMap();
const AXES = [["update", "updates"], ["samples", "samples"], ["seconds", "seconds"]];

export default function ({ data, parentElement, setTriggerValue }) {
  // The page was run again. What is drawn stays, zoom included, unless it is another run's.
  const { state, ...rest } = data, same = JSON.stringify(rest);
  let part = MOUNTED.get(parentElement);
  if (part?.same === same) {
    part.setTriggerValue = setTriggerValue;
    if (part.state !== state) feedOf(data.run_id).soon();
    part.state = state;
    return part.close;
  }
  part?.close();
  const root = parentElement.querySelector(".lab-live") ?? parentElement.appendChild(document.createElement("div"));
  root.className = "lab-live";
  root.replaceChildren();
  part = data.part === "answer" ? new Answer(root) : new Charts(root, data);
  part.same = same;
  part.state = state;
  part.setTriggerValue = setTriggerValue;
  const stop = feedOf(data.run_id).listen((feed, problem) => part.show(feed, problem));
  part.close = () => {
    stop();
    part.dispose?.();
    MOUNTED.delete(parentElement);
  };
  MOUNTED.set(parentElement, part);
  return part.close;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const address = () => new URL(location.href);

// Changes the text only if it is another one: screen readers and selections are left in peace.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

class Answer {
  constructor(root) {
    this.sentence = root.appendChild(make("p", { class: "lab-answer" }));
  }

  show(feed) {
    if (feed.latest) say(this.sentence, feed.latest.sentence);
  }
}

class Charts {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.axis = AXES.find(([, title]) => title === address().searchParams.get("x"))?.[0] ?? "update";
    this.drawn = new Map();
    this.progress();
    this.tiles = root.appendChild(make("div", { class: "lab-tiles" }));
    this.grid = root.appendChild(make("div", { class: "lab-grid" }));
    this.panels = data.panels.map((panel) => this.card(panel));
    if (data.maps) this.maps = new Maps(this.grid, data.maps);
  }

  progress() {
    this.bar = make("i");
    this.track = make("div", { class: "lab-bar", role: "progressbar", "aria-label": "updates made", "aria-valuemin": 0 }, this.bar);
    this.status = make("span", { class: "lab-status", role: "status" });
    this.beside = make("span", { class: "lab-beside" });
    const axes = make("div", { class: "lab-axes", role: "group", "aria-label": "horizontal axis" });
    this.axes = AXES.map(([axis, title]) => {
      const button = make("button", { type: "button", "aria-pressed": axis === this.axis, "data-axis": axis }, title);
      button.onclick = () => this.turn(axis);
      return axes.appendChild(button);
    });
    this.root.append(this.track, make("div", { class: "lab-line" }, this.status, this.beside, axes));
  }

  card(panel) {
    const title = make("h3"), plot = make("div", { class: "lab-plot" });
    const head = make("header", {}, title, make("p", {}, panel.subtitle));
    if (panel.download) {
      const href = `api/runs/${this.data.run_id}.csv?columns=${panel.download}`;
      head.append(make("a", { class: "lab-data", href: new URL(href, document.baseURI).href, download: "", title: "these points as CSV" }, "data"));
    }
    const id = `lab-${panel.key}`;
    title.id = id;
    this.grid.append(make("section", { class: "lab-card", "data-panel": panel.key, role: "figure", "aria-labelledby": id }, head, plot));
    return { panel, title, plot };
  }

  turn(axis) {
    this.axis = axis;
    this.remember();
    for (const button of this.axes) button.setAttribute("aria-pressed", button.dataset.axis === axis);
    if (this.feed?.latest) this.draw();
  }

  // Streamlit writes the address too, at times from what it knew of it before: so this is said again with each news.
  remember() {
    const here = address();
    if (this.axis === "update") here.searchParams.delete("x");
    else here.searchParams.set("x", AXES.find(([axis]) => axis === this.axis)[1]);
    if (here.search !== location.search) history.replaceState(history.state, "", here);
  }

  show(feed, problem) {
    this.feed = feed;
    this.remember();
    this.root.classList.toggle("lab-cut-off", Boolean(problem));
    if (problem) say(this.beside, problem);
    if (problem || !feed.latest) return;
    const news = feed.latest;
    this.bar.style.width = `${(100 * news.update) / Math.max(1, news.total)}%`;
    this.track.setAttribute("aria-valuemax", news.total);
    this.track.setAttribute("aria-valuenow", news.update);
    this.track.setAttribute("aria-valuetext", `update ${news.update} of ${news.total}`);
    this.root.dataset.state = news.state;
    say(this.status, news.state);
    say(this.beside, [news.progress, beside(news.reference)].filter(Boolean).join(" · "));
    this.fillTiles(news.tiles);
    for (const { panel, title } of this.panels) say(title, news.titles[panel.key]);
    this.maps?.show(feed);
    this.draw();
    if (news.state !== this.state) {
      this.state = news.state;
      this.setTriggerValue("state", `${news.id} ${news.state}`);
    }
  }

  fillTiles(tiles) {
    if (this.tiles.children.length !== tiles.length) {
      this.tiles.replaceChildren(...tiles.map((tile) => make(
        "div", { class: "lab-tile", "data-tile": tile.key }, make("span"), make("strong"), make("small"),
      )));
    }
    tiles.forEach((tile, index) => {
      const [label, value, note] = this.tiles.children[index].children;
      say(label, tile.label);
      say(value, tile.value);
      say(note, tile.note);
    });
  }

  async draw() {
    const Plotly = await loadPlotly(this.data.plotly);
    if (this.closed || !this.feed.latest) return;
    const theme = getComputedStyle(this.root).getPropertyValue("--st-background-color");
    const narrow = this.root.clientWidth < 700;
    const { resolve, done } = resolver(this.root);
    for (const { panel, plot } of this.panels) {
      const lengths = panel.fills.map((fill) => Object.values(this.feed.tables[fill.table]).at(-1)?.length ?? 0);
      const memory = JSON.stringify(this.feed.tables.memory);
      const version = [this.axis, theme, narrow, this.feed.revision, this.feed.latest.marks.length, memory, ...lengths].join();
      if (this.drawn.get(plot) === version) continue;
      this.drawn.set(plot, version);
      const { data, layout } = filled(panel, this.feed, this.axis, resolve, narrow, plot.clientWidth);
      const empty = data.every((trace) => !trace.y.some((value) => value !== null));
      if (empty) {
        if (plot.classList.contains("js-plotly-plot")) Plotly.purge(plot);
        plot.replaceChildren("waits for its first point");
      } else if (plot.classList.contains("lab-empty")) plot.replaceChildren();
      plot.classList.toggle("lab-empty", empty);
      if (empty) continue;
      Plotly.react(plot, data, layout, CONFIG);
    }
    done();
  }

  dispose() {
    this.closed = true;
    for (const { plot } of this.panels) window.Plotly?.purge(plot);
  }
}

function beside(reference) {
  if (!reference || reference.state === "done") return "";
  if (reference.state === "running") return `reference at ${reference.update} of ${reference.total}`;
  return `reference ${reference.state}${reference.error ? `: ${reference.error}` : ""}`;
}

class Maps {
  constructor(grid, maps) {
    this.maps = maps;
    this.title = make("h3");
    this.subtitle = make("p");
    this.rows = new Map();
    const table = make("div", { class: "lab-maps", style: `--tiles: ${maps.images.length}` });
    for (const [key, label] of [["image", "image"], ["truth", "truth"], ["reference", "reference"], ["run", "this run"]]) {
      const cells = maps.images.map((_, index) => make("img", { alt: "", title: `${label}, tile ${index + 1}`, width: 64, height: 64 }));
      table.append(make("span", {}, label), ...cells);
      this.rows.set(key, cells);
    }
    this.classes = maps.classes.map(({ name, color }) => {
      const run = make("td"), reference = make("td");
      const row = make("tr", {}, make("td", {}, make("i", { style: `background:${color}` }), name), run, reference);
      return { row, run, reference };
    });
    const legend = make("table", { class: "lab-classes" },
      make("thead", {}, make("tr", {}, make("th", {}, "class"), make("th", {}, "IoU, run"), make("th", {}, "reference"))),
      make("tbody", {}, ...this.classes.map(({ row }) => row)));
    grid.append(make("section", { class: "lab-card lab-wide", "data-panel": "maps", role: "figure" },
      make("header", {}, this.title, this.subtitle), make("div", { class: "lab-maps-row" }, table, legend)));
    this.paint("image", maps.images);
    this.paint("truth", maps.truths);
  }

  paint(key, pictures) {
    this.rows.get(key).forEach((cell, index) => {
      const source = pictures?.[index] ? `data:image/png;base64,${pictures[index]}` : "";
      if (source && cell.src !== source) Object.assign(cell, { src: source, alt: cell.title });
      cell.classList.toggle("lab-waiting", !source);
    });
  }

  show(feed) {
    const { run, reference } = feed.pictures;
    say(this.title, feed.latest.titles.maps);
    const after = run ? `after ${run.update} updates` : "predictions come with the first validation";
    const other = run && reference && reference.update !== run.update ? `, the reference after ${reference.update}` : "";
    say(this.subtitle, `${this.maps.images.length} held-out tiles, ${after}${other}`);
    this.paint("run", run?.images);
    this.paint("reference", (reference ?? null)?.images);
    feed.latest.classes.forEach((iou, index) => {
      say(this.classes[index].run, iou.run?.toFixed(2) ?? "–");
      say(this.classes[index].reference, iou.reference?.toFixed(2) ?? "–");
    });
  }
}
