// One Plotly figure a panel: made once, then given longer columns. Zoom survives, as Plotly keeps what a viewer has
// set while `uirevision` stays the same.

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
};
const X_TITLES = { update: "updates", samples: "samples", seconds: "seconds of training" };

let plotly = null;

function loadPlotly(path) {
  plotly ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const script = document.createElement("script");
    script.src = new URL(path, document.baseURI).href;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { plotly = null; reject(new Error("the charts' script did not load")); };
    document.head.append(script);
  });
  return plotly;
}

// Turns "var(--name)" into the colour that it stands for here: Plotly knows no style sheets.
function resolver(element) {
  const probe = document.createElement("span");
  element.append(probe);
  const known = new Map();
  const color = (text) => {
    if (!known.has(text)) {
      probe.style.color = text;
      const found = getComputedStyle(probe).color;
      const parts = found.startsWith("color(") ? found.match(/[\d.]+/g).map(Number) : null;
      known.set(text, parts ? `rgb(${parts.slice(0, 3).map((part) => Math.round(255 * part))})` : found);
    }
    return known.get(text);
  };
  const resolve = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? color(value) : value;
    if (Array.isArray(value)) return value.map(resolve);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item)]));
    }
    return value;
  };
  return { resolve, done: () => probe.remove() };
}

// The panel's figure with the feed's columns in it, for Plotly.react; `pixels` is the width of its place.
function filled(panel, feed, axis, resolve, narrow, pixels) {
  const data = panel.figure.data.map((trace, index) => {
    const fill = panel.fills[index], table = feed.tables[fill.table];
    const x = table[fill.x ?? axis] ?? [], y = table[fill.y] ?? [];
    if (fill.z) return heat(resolve(trace), x, y, table[fill.z]);
    return { ...resolve(trace), x: x.slice(), y: y.slice() };
  });
  const layout = resolve(panel.figure.layout);
  const own = panel.fills[0].x !== null;
  layout.font.family = getComputedStyle(document.body).fontFamily;
  layout.xaxis = {
    zeroline: false,
    rangemode: "tozero",
    gridcolor: resolve("var(--lab-grid)"),
    ...(own ? {} : { title: { text: X_TITLES[axis], standoff: 6 } }),
    ...layout.xaxis,
    uirevision: own ? feed.runId : `${feed.runId} ${axis}`,
  };
  for (const key of Object.keys(layout)) if (key.startsWith("yaxis")) layout[key].uirevision = feed.runId;
  if (layout.yaxis.type === "log") layout.yaxis.range[1] = Math.max(layout.yaxis.range[1], logRoom(data[0].y));
  if (layout.yaxis2) layout.xaxis.anchor = "y2";
  layout.datarevision = feed.latest.update + Math.random();
  const onHeat = data[0].type === "heatmap";
  layout.annotations = own ? [] : directLabels(panel, feed, data, layout, narrow);
  layout.shapes = own ? [] : marks(feed, axis, onHeat ? "#ffffff" : resolve("var(--lab-quiet)"));
  if (feed.latest.marks.length && !own && !onHeat) {
    const room = pixels - layout.margin.l - layout.margin.r;
    layout.annotations.push(...markLabels(feed, data, axis, resolve("var(--lab-quiet)"), room));
    layout.margin.t = 10 + LABEL_HEIGHT + MARK_HEIGHT * Math.min(MARK_ROWS, feed.latest.marks.length);
  }
  return { data, layout };
}

// The power of ten up to which a log axis must reach to show these values and a label above them.
function logRoom(values) {
  return Math.log10(values.reduce((most, value) => Math.max(most, value ?? 0), 0)) + 1;
}

// Colours always reach up to 1, where the error is as large as the gradient: what is only rounding stays dark.
function heat(trace, x, names, errors) {
  const z = names.map((_, layer) => errors.map((row) => (row[layer] > 0 ? Math.log10(row[layer]) : null)));
  const seen = z.flat().filter((value) => value !== null);
  const low = Math.min(-1, Math.floor(seen.reduce((least, value) => Math.min(least, value), 0) * 2) / 2);
  const high = Math.ceil(seen.reduce((most, value) => Math.max(most, value), 0) * 2) / 2;
  const step = high - low <= 2 ? 0.5 : Math.ceil((high - low) / 5);
  const ticks = [];
  for (let tick = step < 1 ? low : Math.ceil(low); tick <= high; tick += step) ticks.push(tick);
  trace.colorbar = {
    ...trace.colorbar,
    tickvals: ticks,
    ticktext: ticks.map((tick) => (Math.abs(tick) <= 2 ? String(Number((10 ** tick).toPrecision(1))) : `10<sup>${tick}</sup>`)),
  };
  const customdata = names.map((_, layer) => errors.map((row) => row[layer]));
  return { ...trace, x: x.slice(), y: names, z, customdata, zmin: low, zmax: high };
}

// Each line is named near its end, the upper one above and the lower one below all lines there, so that no legend is
// needed.
const MARK_HEIGHT = 14, MARK_ROWS = 3; // pixels; rows of texts over the plot
const LABEL_HEIGHT = 26; // pixels; a line that ends at the top of the plot has its name above it, under the marks' texts
const LABEL_SHARE = 0.42; // of the width, that a label may cover
function directLabels(panel, feed, data, layout, narrow) {
  const width = Math.max(...data.map(({ x }) => x.at(-1) ?? 0));
  const clearOf = panel.labels.flatMap(({ clear_of }) => clear_of).map((trace) => data[trace]);
  const ends = [];
  for (const { trace } of panel.labels) {
    const { x, y, line, yaxis } = data[trace];
    const last = y.findLastIndex((value) => value !== null);
    if (last < 0) continue;
    // A label grows to the left of its line's end, and to the right of it where the left has no room.
    const right = x[last] >= LABEL_SHARE * width;
    const from = x[last] - (right ? LABEL_SHARE * width : 0), to = from + LABEL_SHARE * width;
    const near = clearOf.flatMap((other) => other.y.filter(
      (value, index) => value !== null && other.x[index] >= from && other.x[index] <= to,
    ));
    const text = feed.latest.labels[panel.fills[trace].table];
    ends.push({ x: x[last], last: y[last], near, right, text, color: line.color, yaxis: yaxis ?? "y" });
  }
  const top = ends.reduce((best, end) => (best && best.last >= end.last ? best : end), null);
  return ends.map((end) => {
    const upper = end === top;
    const y = upper ? Math.max(...end.near) : Math.min(...end.near);
    const log = layout[end.yaxis.replace("y", "yaxis")]?.type === "log";
    return {
      x: end.x, y: log ? Math.log10(y) : y, yref: end.yaxis, text: end.text, showarrow: false,
      xanchor: end.right ? "right" : "left", yanchor: upper ? "bottom" : "top", yshift: upper ? 4 : -4,
      font: { color: end.color, size: narrow ? 11 : 12 },
    };
  });
}

function marks(feed, axis, color) {
  return feed.latest.marks.map((mark) => ({
    type: "line", x0: mark[axis], x1: mark[axis], y0: 0, y1: 1, yref: "paper",
    line: { color, width: 1.2, dash: mark.refused ? "dot" : "dash" },
  }));
}

// Above the plot, where no line runs: each in the first row where it is clear of its neighbours. One that fits in none
// is told by its line alone. `pixels` is the plot's width.
function markLabels(feed, data, axis, color, pixels) {
  const scale = pixels / Math.max(1e-9, ...data.map(({ x }) => x.at(-1) ?? 0));
  const ends = Array(MARK_ROWS).fill(-Infinity), labels = [];
  for (const mark of feed.latest.marks) {
    const text = mark.refused ? "refused" : mark.text, width = 6 * text.length;
    const left = Math.max(0, Math.min(mark[axis] * scale - 4, pixels - width));
    const row = ends.findIndex((end) => end + 6 <= left);
    if (row < 0) continue;
    ends[row] = left + width;
    labels.push({
      x: mark[axis], y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", xshift: left - mark[axis] * scale,
      yshift: LABEL_HEIGHT + MARK_HEIGHT * row - 2, text, hovertext: mark.text, showarrow: false, font: { size: 11, color },
    });
  }
  return labels;
}
