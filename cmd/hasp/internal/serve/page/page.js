"use strict";
// The list of names is kept whole here, and only the rows that are in view are in the document: so ten thousand are as fast as ten.
const $ = (id) => document.getElementById(id);
const rows = new Map(); // by name
const state = { sort: "waiting", down: true, filter: "", open: "", skew: 0, connected: false, ready: false, trouble: "", health: null, detail: null };
let shown = []; // in order, filtered

const now = () => Date.now() + state.skew; // by the server's clock
const span = (ms) => {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + (s % 60) + "s";
  return s < 86400 ? Math.floor(s / 3600) + "h" + Math.floor((s % 3600) / 60) + "m" : Math.floor(s / 86400) + "d" + Math.floor((s % 86400) / 3600) + "h";
};
const since = (at) => (at ? span(now() - at) : "");
const until = (at) => (at ? span(at - now()) : "");

/** make makes an element. Text is text: nothing that a lock's owner writes becomes HTML. */
function make(tag, attributes, ...inside) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes ?? {})) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== false && v !== undefined) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...inside.filter((x) => x !== null && x !== undefined));
  return e;
}

// The list.

const numbers = new Set(["since", "expires", "waiting", "oldest", "token"]);
/** before compares two rows by a column; what has no value comes last. */
function before(a, b) {
  const k = state.sort;
  let x = a[k] ?? "", y = b[k] ?? "", c;
  if (k === "since" || k === "oldest") [x, y] = [x ? -x : "", y ? -y : ""]; // a long time is an early moment
  if (x === "" || y === "") c = x === y ? 0 : x === "" ? 1 : -1;
  else {
    c = numbers.has(k) ? Number(x) - Number(y) : String(x).localeCompare(String(y));
    if (state.down) c = -c;
  }
  return c || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
}

function arrange() {
  const words = state.filter.toLowerCase();
  shown = [...rows.values()].filter((r) => !words || r.name.toLowerCase().includes(words) || r.holder.toLowerCase().includes(words)).sort(before);
  $("table").setAttribute("aria-rowcount", shown.length + 1);
  const waiting = shown.reduce((n, r) => n + r.waiting, 0);
  const text = !state.ready ? "" : `${shown.length}${words ? ` of ${rows.size}` : ""} ${rows.size === 1 ? "name" : "names"}, ${waiting} waiting`;
  if ($("count").textContent !== text) $("count").textContent = text;
  draw();
}

const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

/** draw puts the rows in view into the document, and uses the elements that are there. */
function draw() {
  const list = $("list"), height = rowHeight(), first = Math.max(0, Math.floor(list.scrollTop / height) - 5);
  const some = shown.slice(first, first + Math.ceil(list.clientHeight / height) + 10);
  $("table").style.setProperty("--bar", list.offsetWidth - list.clientWidth + "px");
  $("space").style.height = shown.length * height + "px";
  $("rows").style.transform = `translateY(${first * height}px)`;
  const box = $("rows"), had = box.contains(document.activeElement) ? document.activeElement.dataset.name : undefined;
  while (box.children.length > some.length) box.lastElementChild.remove();
  while (box.children.length < some.length) box.append(newRow());
  some.forEach((r, i) => fill(box.children[i], r, first + i));
  if (had !== undefined && document.activeElement?.dataset?.name !== had && !focusRow(had)) {
    $("list").dataset.name = had; // it is out of view: the keys go on from it, and none acts on the name that has its place now
    $("list").focus({ preventScroll: true });
  }
}

function newRow() {
  const row = make("div", { role: "row", class: "row" }, make("span", { role: "rowheader" }, make("a", {})));
  for (let i = 0; i < 7; i++) row.append(make("span", { role: "cell" }));
  return row;
}

function fill(element, r, i) {
  if (!element.querySelector("a")) { // the server has written it
    const fresh = newRow();
    element.replaceWith(fresh);
    element = fresh;
  }
  const link = element.querySelector("a");
  const cells = [r.holder + (r.more ? ` and ${r.more} more` : ""), r.kind, r.token ?? "", since(r.since), until(r.expires), r.waiting ? r.waiting + (r.beyond ? "+" : "") : "", since(r.oldest)];
  if (!r.holder && r.closed > now()) cells[0] = `none for ${until(r.closed)}: the store may have forgotten locks`;
  element.setAttribute("aria-rowindex", i + 2);
  element.classList.toggle("open", r.name === state.open);
  if (link.dataset.name !== r.name) {
    link.dataset.name = link.textContent = link.title = r.name;
    link.href = "#" + encodeURIComponent(r.name);
  }
  cells.forEach((text, k) => {
    const cell = element.children[k + 1];
    if (cell.textContent !== text) cell.textContent = cell.title = text;
  });
  element.children[6].classList.toggle("waits", r.waiting > 0);
}

function focusRow(name) {
  for (const a of $("rows").querySelectorAll("a")) if (a.dataset.name === name) return a.focus({ preventScroll: true }), true;
  return false;
}

/** step moves the focus to the next or the previous row, also to one that is out of view. */
function step(name, by) {
  const i = shown.findIndex((r) => r.name === name) + by;
  if (i < 0 || i >= shown.length) return;
  const list = $("list"), height = rowHeight();
  if (i * height < list.scrollTop) list.scrollTop = i * height;
  if ((i + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (i + 1) * height - list.clientHeight;
  draw();
  focusRow(shown[i].name);
}

// One name in full.

/** parse keeps tokens as text: JavaScript cannot count as far as some of them go. */
const parse = (text) => JSON.parse(text.replace(/"token":(\d+)/g, '"token":"$1"'));

async function readDetail() {
  const name = state.open;
  if (!name) return;
  try {
    const answer = await fetch("/page/queue?name=" + encodeURIComponent(name), { cache: "no-store" });
    const found = parse(await answer.text());
    if (state.open !== name) return;
    state.detail = answer.ok ? found : { error: found.detail ?? answer.statusText };
  } catch (e) {
    if (state.open === name) state.detail = { ...state.detail, error: "The server cannot be reached." };
  }
  drawDetail();
}

const owner = (o) => {
  const via = o.via ? `, as the client with token "${o.via}" says` : "";
  if (o.raw) return `another library's client (${o.raw})${via}`;
  const what = o.note || o.program, at = [o.user, o.host].filter(Boolean).join("@");
  return ([at, o.pid ? `pid ${o.pid}` : "", what ? `(${what})` : ""].filter(Boolean).join(" ") || "an unnamed owner") + via;
};

function drawDetail() {
  const box = $("detail"), d = state.detail;
  box.hidden = !state.open;
  $("both").classList.toggle("named", Boolean(state.open));
  if (!state.open) return;
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.do : undefined, top = box.scrollTop;
  box.replaceChildren(make("div", { class: "top" }, make("h2", { id: "detail-name", tabindex: "-1", "data-do": "name" }, state.open), make("button", { "data-do": "close", onclick: () => (location.hash = "") }, "Close")));
  if (d?.error) box.append(make("p", { class: "bad", role: "alert" }, d.error));
  if (d?.holders) box.append(...content(d));
  box.scrollTop = top;
  if (focused) box.querySelector(`[data-do="${CSS.escape(focused)}"]`)?.focus();
}

function content(d) {
  const at = Date.parse(d.now), longest = Math.max(1000, ...[...d.holders, ...d.waiters].map((e) => (e.since ? at - Date.parse(e.since) : 0)));
  const all = [];
  if (d.quarantine_ns) all.push(make("p", { class: "alert severe" }, `The store grants nothing for ${span(d.quarantine_ns / 1e6)}: it may have forgotten locks.`));
  if (d.holders.length + d.waiters.length === 0) all.push(make("p", {}, "It is free."));
  if (d.may_ask && d.holders.length > 0) {
    const listens = d.holders.filter((h) => h.owner.listens).length;
    const text = listens ? "The holder is told, and decides." : "The holder does not listen to requests: this waits in the queue until it is done.";
    all.push(make("p", { class: "buttons" }, make("button", { "data-do": "ask", onclick: () => confirm("Ask for " + d.name, text, "Ask", (why) => act("/page/ask", { name: d.name, why })) }, "Ask the holder to give it up")));
  }
  all.push(...entries("Held by", "held", d.holders, d, at, longest), ...entries("Waiting", "waiting", d.waiters, d, at, longest));
  if (d.eviction) all.push(make("h3", {}, "Last taken away"), make("p", {}, `by ${owner(d.eviction.by)}, ${span(at - Date.parse(d.eviction.at))} ago: ${d.eviction.why ?? "no reason was given"}`));
  if (d.losses.length) all.push(make("h3", {}, "Lost by clients of this server"), make("ul", {}, ...d.losses.slice(0, 10).map((l) => make("li", { class: "entry" }, `${span(at - Date.parse(l.at))} ago: ${l.why}`))));
  return all;
}

function entries(title, kind, list, d, at, longest) {
  if (!list.length) return [];
  const most = 200;
  const items = list.slice(0, most).map((e) => {
    const ms = e.since ? at - Date.parse(e.since) : 0, fill = make("i", {});
    fill.style.width = Math.max(1, (100 * ms) / longest) + "%";
    const facts = [e.since ? `${kind === "held" ? "asked" : "waits"} ${span(ms)}${kind === "held" ? " ago" : ""}` : "", e.expires ? `TTL ${span(Date.parse(e.expires) - at)}` : "", e.token ? `token ${e.token}` : "", e.capacity !== 2147483647 ? `${e.units} of ${e.capacity}` : e.units === e.capacity ? "" : "reader"];
    return make("li", { class: "entry " + kind }, owner(e.owner), make("div", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      make("div", { class: "bar", role: "img", "aria-label": `${kind === "held" ? "asked" : "waits"} for ${span(ms)}` }, fill),
      e.owner.asks ? make("div", {}, `asks: ${e.owner.asks}`) : null, e.value ? make("div", { class: "soft" }, `value: ${e.value}`) : null,
      d.may_evict ? make("button", { class: "danger", "data-do": "evict " + e.id, "aria-label": `Take away from ${owner(e.owner)}`, onclick: () => confirmEvict(d, e, kind) }, "Take away") : null);
  });
  if (list.length > most) items.push(make("li", { class: "entry soft" }, `and ${list.length - most} more`));
  return [make("h3", {}, `${title} (${list.length})`), make("ul", {}, ...items)];
}

// What an operator does.

function confirmEvict(d, e, kind) {
  const text = kind === "held" ? `${owner(e.owner)} is told as soon as the store can tell it. Until then it believes that it holds, and the next in the queue has the lock already: what is written to must check fencing tokens.` : `${owner(e.owner)} loses its place in the queue.`;
  confirm("Take away " + d.name, text, "Take away", (why) => act("/page/evict", { name: d.name, entry: e.id, why }));
}

function confirm(title, text, verb, then) {
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("yes").textContent = verb;
  $("why").value = "";
  const box = $("ask");
  box.onclose = () => box.returnValue === "yes" && $("why").value.trim() && then($("why").value.trim());
  box.returnValue = "";
  box.showModal();
}

async function act(path, body) {
  tell("Asking…");
  try {
    const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "Hasp-Page": "1" }, body: JSON.stringify(body) });
    const said = await answer.json();
    tell(answer.ok ? said.text : said.detail ?? said.title, !answer.ok);
  } catch (e) {
    tell("The server cannot be reached: nothing is known of the request.", true);
  }
  void readDetail();
}

let told = ""; // about the last action
function tell(text, bad) {
  told = text;
  $("state").classList.toggle("bad", Boolean(bad));
  $("state").textContent = text;
  setTimeout(() => told === text && ((told = ""), showState()), 8000);
}

function showState() {
  if (told) return;
  const text = !state.connected ? "Not connected: the server cannot be reached. The list may be old." : state.trouble ? "The store cannot be read: " + state.trouble : state.ready ? "Live" : "Reading the store…";
  $("state").classList.toggle("bad", !state.connected || Boolean(state.trouble));
  if ($("state").textContent !== text) $("state").textContent = text;
}

// What may be wrong.

function drawHealth() {
  const h = state.health, all = [];
  if (!h) return;
  for (const d of h.deadlocks) {
    all.push(fold(true, d.certain ? "A deadlock: none of these will get its lock." : "A cycle of waiting sessions, which may be a deadlock.", cycle(d.waits)));
  }
  for (const f of h.findings.filter((f) => f.level === "bad" || f.level === "warn")) {
    all.push(fold(f.level === "bad", f.subject + ": " + f.text, f.cure ? "Cure: " + f.cure : ""));
  }
  if (!h.searched) all.push(fold(false, "Deadlocks are not searched at the moment.", "There are more than 2,000 names, or the store cannot say. hasp deadlocks has no limit."));
  const text = JSON.stringify([h.deadlocks.map((d) => d.waits.map((w) => w.waiter.id)), h.findings, h.searched]);
  if ($("alerts").dataset.what === text) return;
  $("alerts").dataset.what = text;
  $("alerts").replaceChildren(...all);
}

const folded = new Set(); // what a person has folded
/** fold makes an alert, which stays folded when it is drawn again. */
function fold(severe, title, inside) {
  const e = make("details", { class: "alert" + (severe ? " severe" : ""), open: !folded.has(title) }, make("summary", {}, title), make("div", {}, inside));
  e.addEventListener("toggle", () => (e.open ? folded.delete(title) : folded.add(title)));
  return e;
}

/** cycle draws who waits for which name. */
function cycle(waits) {
  const svg = (tag, attributes, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (text) e.textContent = text;
    return e;
  };
  const words = waits.map((w) => `${owner(w.waiter.owner)} waits for ${w.name} behind ${owner(w.on.owner)}`).join("; ");
  const picture = svg("svg", { viewBox: "0 0 640 220", width: 640, role: "img", "aria-label": words });
  const spot = (i) => [320 + 200 * Math.cos((2 * Math.PI * i) / waits.length - Math.PI / 2), 110 + 80 * Math.sin((2 * Math.PI * i) / waits.length - Math.PI / 2)];
  const short = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);
  waits.forEach((w, i) => {
    const [x, y] = spot(i), [u, v] = spot((i + 1) % waits.length), bend = waits.length === 2 ? 40 : 0;
    const mx = (x + u) / 2 + (bend * (v - y)) / 160, my = (y + v) / 2 - (bend * (u - x)) / 160;
    const right = (x + 2 * mx + u) / 4 >= 320;
    const far = Math.hypot(u - mx, v - my) || 1, tx = u - ((u - mx) / far) * 16, ty = v - ((v - my) / far) * 16, a = Math.atan2(v - my, u - mx);
    picture.append(svg("path", { class: "edge", d: `M${x} ${y} Q${mx} ${my} ${tx} ${ty}`, "stroke-width": 2 }),
      svg("path", { class: "tip", d: `M${tx + 8 * Math.cos(a)} ${ty + 8 * Math.sin(a)} L${tx - 6 * Math.sin(a)} ${ty + 6 * Math.cos(a)} L${tx + 6 * Math.sin(a)} ${ty - 6 * Math.cos(a)}Z` }),
      svg("text", { x: (x + 2 * mx + u) / 4 + (right ? 8 : -8), y: (y + 2 * my + v) / 4, "text-anchor": right ? "start" : "end" }, short(w.name, 24)));
  });
  waits.forEach((w, i) => {
    const [x, y] = spot(i);
    picture.append(svg("circle", { class: "node", cx: x, cy: y, r: 8 }), svg("text", { x, y: y < 110 ? y - 14 : y + 24, "text-anchor": "middle" }, short(owner(w.waiter.owner), 40)));
  });
  return picture;
}

// Events.

function take(c, whole) {
  state.skew = c.now - Date.now();
  state.ready = c.ready;
  if (whole) rows.clear();
  for (const r of c.set) rows.set(r.name, r);
  for (const name of c.gone ?? []) rows.delete(name);
  if (state.open && (whole || c.set.some((r) => r.name === state.open) || c.gone?.includes(state.open))) void readDetail();
  if (state.ready || rows.size > 0) arrange();
  showState();
}

const silence = 15000; // ms: the server says each 5 seconds that it is there

function connect() {
  const source = new EventSource("/page/events");
  let heard = Date.now();
  // A network that is silent breaks no connection: without this the page would say "Live" until TCP gives up.
  const watch = setInterval(() => {
    if (Date.now() - heard < silence) return;
    state.connected = false;
    showState();
    close();
    connect();
  }, 1000);
  const close = () => (clearInterval(watch), source.close());
  const on = (event, f) => source.addEventListener(event, (e) => {
    heard = Date.now();
    state.connected = true;
    f(JSON.parse(e.data));
  });
  on("list", (c) => take(c, true));
  on("change", (c) => take(c, false));
  on("here", showState);
  on("trouble", (text) => ((state.trouble = text), showState()));
  on("health", (h) => ((state.health = h), drawHealth()));
  source.addEventListener("error", () => {
    state.connected = false;
    showState();
    if (source.readyState === EventSource.CLOSED) { // an answer that is no stream: the token may be refused by now
      close();
      setTimeout(async () => ((await fetch("/", { cache: "no-store" }).catch(() => null))?.status === 401 ? location.reload() : connect()), 1000);
    }
  });
}

function open() {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch { /* written by hand: a name may have a % */ }
  const was = state.open;
  if (name === was) return;
  state.open = name;
  state.detail = null;
  drawDetail();
  arrange();
  if (name) {
    $("detail-name").focus();
    void readDetail();
  } else focusRow(was);
}

document.addEventListener("keydown", (e) => {
  const name = e.target.dataset?.name;
  if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(e.target.tagName)) (e.preventDefault(), $("filter").focus());
  else if (e.key === "Escape" && !$("ask").open && state.open) location.hash = "";
  else if (e.key === "Enter" && e.target === $("list") && name !== undefined) location.hash = "#" + encodeURIComponent(name);
  else if (e.key === "ArrowDown" && name !== undefined) (e.preventDefault(), step(name, 1));
  else if (e.key === "ArrowUp" && name !== undefined) (e.preventDefault(), step(name, -1));
});
$("filter").addEventListener("input", (e) => ((state.filter = e.target.value), ($("list").scrollTop = 0), arrange()));
$("list").addEventListener("scroll", () => requestAnimationFrame(draw));
$("no").addEventListener("click", () => $("ask").close("no"));
for (const b of document.querySelectorAll("[data-sort]")) {
  b.addEventListener("click", () => {
    state.down = state.sort === b.dataset.sort ? !state.down : b.dataset.sort !== "name" && b.dataset.sort !== "holder";
    state.sort = b.dataset.sort;
    for (const o of document.querySelectorAll("[data-sort]")) o.parentElement.setAttribute("aria-sort", o === b ? (state.down ? "descending" : "ascending") : "none");
    arrange();
  });
}
addEventListener("hashchange", open);
addEventListener("resize", () => draw());
setInterval(() => state.ready && draw(), 1000); // the times go on
setInterval(() => void readDetail(), 1000);
connect();
open();
