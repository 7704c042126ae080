// The page of `dca serve`: no libraries, no build step, nothing from other hosts.

const $ = (id) => document.getElementById(id);
const POLL_MS = 2500;
const THUMBNAILS_KEPT = 400;

let state = null; // GET /api/model
let tray = []; // GET /api/tray
let current = null; // the image being looked at: {image, blob, answer}
let labelled = null; // hash of the image that was labelled last
let token = "";
let busy = false; // while a change is on its way
const thumbnails = new Map(); // hash of an image -> promise of a blob address

// --- talking to the server -------------------------------------------------------------------

class Refused extends Error {
  constructor(status, body) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

async function call(method, path, body) {
  const headers = { "X-DCA": "1" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const raw = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = raw ? "application/octet-stream" : "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined || raw ? body : JSON.stringify(body) });
  } catch {
    throw new Refused(0, { message: "the server does not answer" });
  }
  if (response.status === 401) $("token-form").hidden = false;
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
  return response;
}

const get = async (path) => (await call("GET", path)).json();
const post = async (path, body) => (await call("POST", path, body)).json();

function thumbnail(image) {
  if (!thumbnails.has(image)) {
    thumbnails.set(image, call("GET", `/api/images/${image}`).then((r) => r.blob()).then((b) => URL.createObjectURL(b)));
    thumbnails.get(image).catch(() => thumbnails.delete(image));
    if (thumbnails.size > THUMBNAILS_KEPT) {
      const [oldest, address] = thumbnails.entries().next().value;
      thumbnails.delete(oldest);
      address.then((a) => URL.revokeObjectURL(a)).catch(() => {});
    }
  }
  return thumbnails.get(image);
}

// --- small helpers ---------------------------------------------------------------------------

function element(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function percent(share) {
  const shown = 100 * share;
  const text = shown > 99 && shown < 100 ? "> 99 %" : shown < 1 && shown > 0 ? "< 1 %" : `${Math.round(shown)} %`;
  return text.replaceAll(" ", "\u00a0");
}

const pluralize = (n, noun) => `${n} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

let toastTimer;
// A line for everyone; one that the page shows elsewhere is for screen readers only.
function say(text, { bad = false, seen = false } = {}) {
  const box = $("status");
  box.textContent = text;
  box.className = `toast${seen ? "" : " on"}${bad ? " bad" : ""}`;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.classList.remove("on"), bad ? 8000 : 4500);
}

function showError(error) {
  const hint = error.body && error.body.hint ? ` (${error.body.hint})` : "";
  say(`${error.message}${hint}`, { bad: true });
}

function thumbnailElement(image, alt) {
  const made = element("img", { alt, loading: "lazy" });
  thumbnail(image).then((address) => { made.src = address; }).catch(() => {});
  return made;
}

// --- showing ---------------------------------------------------------------------------------

function showState() {
  const accuracy = state.accuracy;
  document.title = `${state.model} – dca`;
  $("title").textContent = state.model;
  $("subtitle").textContent = `${state.method} on ${state.backbone}, ${pluralize(state.classes.filter((c) => !c.new).length, "class")}`;
  $("accuracy-box").hidden = !accuracy;
  if (accuracy) {
    const range = `${Math.round(100 * accuracy.low)}–${Math.round(100 * accuracy.high)} %`;
    $("accuracy").replaceChildren(percent(accuracy.value), " ", element("span", { class: "fine", text: `(${range})` }));
    $("accuracy").title = `${accuracy.how} on ${pluralize(accuracy.images, "training image")}, 95 % interval`;
  }
  const waiting = state.pending ? element("span", { class: "fine", text: ` ${state.pending} not in the model yet` }) : "";
  $("corrections").replaceChildren(String(state.corrections), waiting);
  $("refit").disabled = busy || !state.refit.possible || !state.pending;
  $("undo").disabled = busy || !state.undo;
  $("undo").title = state.undo ? `Undo: ${state.undo} (${pluralize(state.undo_steps, "step")} back at most)` : "Nothing to undo";
  const notice = $("no-refit");
  const { failure } = state.refit;
  notice.hidden = state.refit.possible && !failure;
  if (failure) {
    const details = failure.details ? ` (${failure.details.join("; ")})` : "";
    notice.textContent = `The corrections are not in the model: ${failure.message}${details}. To mend it: ${failure.hint}.`;
  } else if (!state.refit.possible) {
    notice.replaceChildren(
      `Refit is not possible here: ${state.refit.reason}. Corrections are kept; where the training images are, run`,
      element("code", { text: state.refit.command }),
    );
  }
  showQuota();
  showRejection();
  showClasses();
}

// Said before the quota is used up, from four fifths on.
const QUOTA_SHARE = 0.8;
function showQuota() {
  const { quota, corrections } = state;
  const images = `${quota.images.toLocaleString("en")} corrections`;
  const bytes = `${(quota.bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`;
  const used = `${corrections.toLocaleString("en")} of ${images} and ${(quota.used_bytes / 1e6).toFixed(1)} of ${bytes}`;
  $("limits").textContent = `Up to ${images} (${bytes}) are kept; the last ${pluralize(state.limits.undo_steps, "step")} can be undone.`;
  $("quota").hidden = corrections < QUOTA_SHARE * quota.images && quota.used_bytes < QUOTA_SHARE * quota.bytes;
  $("quota").textContent = `${used} are used. When they are used up, ${quota.hint}.`;
}

function showRejection() {
  const { rate, images, needed } = state.rejection;
  const why = images < needed ? `it takes ${needed} training images that can be left out, as many of each class, and these are worth ${images}` : "switched off";
  $("rejection").textContent = rate === null
    ? `The answer “none of these” is not given: ${why}.`
    : `“None of these” is for images with p ≤ ${rate.toFixed(3)}; about ${percent(rate)} of good images have that, too.`;
}

function showClasses() {
  $("class-count").textContent = state.classes.length;
  $("classes").replaceChildren(...state.classes.map((one) => {
    const chip = element("li", { class: one.new ? "new" : "" }, one.label);
    chip.append(element("span", { class: "count", text: one.new ? "new" : one.images, title: "training images" }));
    if (one.pending) chip.append(element("span", { class: "more", text: `+${one.pending}`, title: "corrections that wait for Refit" }));
    return chip;
  }));
  $("known").replaceChildren(...state.classes.map((one) => element("option", { value: one.label })));
}

function answerButton(row, number, right) {
  const fill = element("div", { class: "fill" });
  const button = element(
    "button",
    { type: "button", class: `answer${right ? " right" : ""}`, "aria-pressed": right ? "true" : "false", onclick: () => label(row.label) },
    element("kbd", { text: number, "aria-hidden": "true" }),
    element("span", { class: "name", text: row.label }),
    element("span", { class: "share", text: percent(row.probability) }),
    element("div", { class: "track", "aria-hidden": "true" }, fill),
  );
  button.setAttribute("aria-label", `${row.label}, ${percent(row.probability)}${right ? ", corrected to this" : ". Label the image so"}`);
  requestAnimationFrame(() => { fill.style.width = `${Math.max(100 * row.probability, 0.5)}%`; });
  return button;
}

function showAnswer() {
  const { answer } = current;
  const list = element("div", { class: "answers", role: "group", "aria-label": "Most probable classes" });
  list.append(...answer.top.map((row, n) => answerButton(row, n + 1, row.label === answer.corrected)));
  if (answer.corrected && !answer.top.some((row) => row.label === answer.corrected)) {
    list.append(element("p", { class: "quiet", text: `Labelled as “${answer.corrected}”.` }));
  }
  $("answers").replaceChildren(list);
  $("answer-title").textContent = answer.corrected ? `Labelled: ${answer.corrected}` : "What is it?";
  $("other").hidden = false;
  $("none").hidden = !answer.none_of_these;
  $("none-why").textContent = `It is less like the training images than nearly all of them are (p = ${answer.p_value && answer.p_value.toFixed(3)}).`;
  $("near-box").hidden = !answer.nearest.length;
  $("near").replaceChildren(...answer.nearest.map((near) => element(
    "li", {},
    thumbnailElement(near.image, `Training image of ${near.label}`),
    element("span", { class: "caption" }, near.label, element("span", { class: "quiet", text: ` ${near.similarity.toFixed(2)}` })),
  )));
}

let shownAddress = "";
async function showImage() {
  const shown = $("shown");
  if (shownAddress) URL.revokeObjectURL(shownAddress);
  shownAddress = current.blob ? URL.createObjectURL(current.blob) : "";
  const small = () => thumbnail(current.image).then((address) => { shown.onerror = null; shown.src = address; }).catch(() => {});
  shown.onerror = small; // formats that the browser does not know
  if (shownAddress) shown.src = shownAddress;
  else await small();
  shown.hidden = false;
  $("invite").hidden = true;
  $("drop").classList.add("filled");
}

function showTray() {
  $("tray-count").textContent = tray.length;
  $("tray").replaceChildren(...tray.map((row, n) => {
    const best = row.top[0];
    const said = row.none_of_these ? "none of these?" : `${best.label}?`;
    const chosen = current && current.image === row.image;
    return element(
      "li", {},
      element(
        "button",
        { type: "button", class: `thumb${chosen ? " current" : ""}`, "aria-label": `Unlabelled image ${n + 1}: ${said} ${percent(best.probability)}`, "aria-current": chosen ? "true" : "false", onclick: () => lookAt(row) },
        thumbnailElement(row.image, ""),
        element("span", { class: "caption" }, said, element("span", { class: "quiet", text: ` ${percent(best.probability)}` })),
      ),
      element("button", { type: "button", class: "remove", "aria-label": `Remove unlabelled image ${n + 1} from the tray`, text: "×", onclick: () => removeFromTray(row.image) }),
    );
  }));
}

function showChange(result, image) {
  const box = $("change");
  box.hidden = false;
  const rows = [];
  const before = result.before.answer, after = result.after.answer;
  if (before && after) {
    const old = new Map(before.top.map((row) => [row.label, row.probability]));
    for (const row of after.top.slice(0, 3)) {
      const was = old.has(row.label) ? percent(old.get(row.label)) : "–";
      rows.push(changeRow(row.label, was, percent(row.probability), row.probability > (old.get(row.label) || 0)));
    }
  }
  const a = result.before.accuracy, b = result.after.accuracy;
  if (a && b) rows.push(changeRow("Expected accuracy", percent(a.value), percent(b.value), b.value > a.value));
  const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", { text: "" }), element("td", { text: "before" }), element("td", { text: "after" }))), element("tbody", {}, ...rows));
  const others = result.tray_changed ? ` ${pluralize(result.tray_changed, "answer")} in the tray changed.` : "";
  const words = element("p", {}, element("strong", { text: `Refitted in ${result.seconds.toFixed(2)} s.` }), others);
  box.replaceChildren(element("div", { class: "what" }, ...(before ? [thumbnailElement(image, "The image that was labelled last")] : []), words), table);
}

function changeRow(name, before, after, better) {
  return element("tr", {}, element("th", { text: name, scope: "row" }), element("td", { text: before }), element("td", { class: better ? "up" : "", text: after }));
}

// --- actions ---------------------------------------------------------------------------------

async function change(action) {
  if (busy) return;
  busy = true;
  $("drop").classList.add("busy");
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    busy = false;
    $("drop").classList.remove("busy");
    if (state) showState();
  }
}

async function predict(blob) {
  const answer = await post("/api/predict", blob);
  current = { image: answer.image, blob, answer };
  $("change").hidden = true;
  await showImage();
  showAnswer();
  showTray();
  const best = answer.top[0];
  const doubt = answer.none_of_these ? "Perhaps none of these; nearest: " : "";
  say(`${doubt}${best.label}, ${percent(best.probability)}`, { seen: true });
}

async function addFiles(files) {
  const images = [...files].filter((file) => !file.type || file.type.startsWith("image/"));
  if (!images.length) return say("That is not an image", { bad: true });
  if (images.length === 1) return change(() => predict(images[0]));
  return change(async () => {
    let added = 0;
    for (const file of images) {
      say(`Adding ${added + 1} of ${images.length} …`);
      try {
        await post("/api/tray", file);
        added += 1;
      } catch (error) {
        showError(error);
      }
    }
    await refresh(true);
    say(`${pluralize(added, "image")} in the tray`);
    if (tray.length && (!current || current.answer.corrected)) await lookAt(tray[0]);
  });
}

async function lookAt(row) {
  current = { image: row.image, blob: null, answer: row };
  $("change").hidden = true;
  await showImage();
  showAnswer();
  showTray();
}

function label(text) {
  if (!current) return;
  return change(async () => {
    const place = tray.findIndex((row) => row.image === current.image);
    const result = await post("/api/correct", { image: current.image, label: text }).catch(async (error) => {
      if (error.status !== 404 || !current.blob) throw error;
      await post("/api/predict", current.blob); // the server has forgotten it
      return post("/api/correct", { image: current.image, label: text });
    });
    state = result.state;
    current.answer = { ...current.answer, corrected: result.label };
    labelled = current.image;
    $("other-label").value = "";
    say(`Saved as “${result.label}”.${state.refit.possible ? " Press Refit to learn it." : ""}`);
    if (place < 0) return showAnswer();
    tray = (await get("/api/tray")).images;
    if (tray.length) return lookAt(tray[Math.min(place, tray.length - 1)]);
    showAnswer();
    showTray();
  });
}

function refit() {
  return change(async () => {
    say("Refitting …");
    const image = labelled || (current && current.image);
    const result = await post("/api/refit", image ? { image } : {});
    if (current && current.image === image) current.answer = { ...current.answer, ...result.after.answer };
    await refresh(true);
    showChange(result, image);
    say(`Refitted in ${result.seconds.toFixed(2)} s`, { seen: true });
  });
}

function undo() {
  return change(async () => {
    const result = await post("/api/undo", { revision: state.revision });
    $("change").hidden = true;
    labelled = null;
    await refresh(true);
    say(`Undone: ${result.undone}`);
  });
}

function removeFromTray(image) {
  return change(async () => {
    await call("DELETE", `/api/tray/${image}`);
    await refresh(true);
  });
}

// The state of the server, and whatever depends on it; other tabs may have changed it.
async function refresh(force = false) {
  const found = await get("/api/model");
  if (!force && state && found.revision === state.revision) return;
  state = found;
  showState();
  tray = (await get("/api/tray")).images;
  if (current) {
    const row = tray.find((one) => one.image === current.image);
    if (row) current.answer = row;
    else if (current.blob) current.answer = await post("/api/predict", current.blob);
    showAnswer();
  }
  showTray();
}

async function poll() {
  if (!document.hidden && !busy && (state || token)) {
    await refresh().catch((error) => { if (error.status !== 401) showError(error); });
  }
  setTimeout(poll, POLL_MS);
}

// --- events ----------------------------------------------------------------------------------

function move(step) {
  if (!tray.length) return;
  const place = current ? tray.findIndex((row) => row.image === current.image) : -1;
  lookAt(tray[Math.min(Math.max(place + step, 0), tray.length - 1)]);
}

const KEYS = {
  o: () => $("choose").click(),
  r: () => { if (!$("refit").disabled) refit(); },
  u: () => { if (!$("undo").disabled) undo(); },
  n: () => { if (!$("other").hidden) $("other-label").focus(); },
  ArrowRight: () => move(1),
  ArrowLeft: () => move(-1),
};

function onKey(event) {
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = current ? current.answer.top : [];
  if (/^[1-9]$/.test(event.key) && rows[event.key - 1]) return label(rows[event.key - 1].label);
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

function listen() {
  const drop = $("drop");
  const over = (on) => (event) => { event.preventDefault(); drop.classList.toggle("over", on); };
  document.addEventListener("dragover", over(true));
  document.addEventListener("dragleave", over(false));
  document.addEventListener("drop", (event) => { over(false)(event); addFiles(event.dataTransfer.files); });
  document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) addFiles(event.clipboardData.files); });
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && state && !busy) refresh().catch(showError); });
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => { addFiles($("file").files); $("file").value = ""; });
  $("refit").addEventListener("click", refit);
  $("undo").addEventListener("click", undo);
  $("other").addEventListener("submit", (event) => {
    event.preventDefault();
    $("other-label").blur();
    label($("other-label").value);
  });
  $("token-form").addEventListener("submit", (event) => { event.preventDefault(); start($("token").value.trim().split("#token=").pop()); });
}

// The token is the part of the address after "#", which browsers do not send. It is kept for this tab only, and not as a
// cookie: browsers send those to every port of a host, which may be the server of another user of the machine.
function readTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname);
  return given || sessionStorage.getItem("dca-token") || "";
}

async function start(given) {
  token = given;
  if (token) sessionStorage.setItem("dca-token", token);
  try {
    await refresh(true);
    $("token-form").hidden = true;
  } catch (error) {
    if (error.status !== 401 || token) showError(error);
  }
}

listen();
start(readTokenFromAddress()).then(poll);
