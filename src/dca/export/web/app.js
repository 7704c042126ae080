// Classifies images with the model beside this page: dropped, pasted, chosen, of whole folders, or of the camera.
"use strict";

// Answers that are shown; the table has all of them.
const MOST_SHOWN = 200;
const IMAGE = /\.(jpe?g|jpe|jfif|a?png|webp|gif|bmp|avif|tiff?)$/i;
const element = (id) => document.getElementById(id);
const showStatus = (text, wrong = false) => {
  element("state").textContent = text;
  element("state").classList.toggle("wrong", wrong);
};

async function fetchFile(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return answer;
}

// The model's bytes; says how many have arrived.
async function fetchBytes(name) {
  const answer = await fetchFile(name);
  const total = Number(answer.headers.get("Content-Length")) || 0;
  const reader = answer.body.getReader(), parts = [];
  let got = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    got += value.length;
    showStatus(`Loading the model: ${(got / 1e6).toFixed(0)}${total ? ` of ${(total / 1e6).toFixed(0)}` : ""} MB`);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function load() {
  if (location.protocol === "file:") {
    throw new Error("a browser does not load a model from a file: serve this folder, for example with\n" +
                    "python -m http.server, and open http://127.0.0.1:8000");
  }
  const about = await (await fetchFile("classes.json")).json();
  const labels = about.labels.map(String), shown = labels.slice(0, 30).join(", ");
  document.title = element("name").textContent = about.name;
  element("about").textContent = `Classes: ${shown}${labels.length > 30 ? `, … (${labels.length} in all)` : ""}`;
  element("top").max = labels.length;
  element("top").value = Math.min(3, labels.length);
  element("reject-option").hidden = about.smallest_p_value === null;
  element("set-option").hidden = about.set_images === null;
  if (about.smallest_p_value !== null) element("rate").value = Math.max(5, ceilPercent(about.smallest_p_value));
  ort.env.wasm.wasmPaths = new URL("ort/", document.baseURI).href;
  // Threads need headers that plain file servers do not send.
  if (!globalThis.crossOriginIsolated) ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(await fetchBytes("model.onnx"), { executionProviders: ["wasm"] });
  return { about, session };
}

// RGBA values of an image or a frame of a video: on white, rotated as EXIF data says, without conversion of colours.
function drawPixels(source, width, height) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

async function readPixels(file) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options);
  try {
    return drawPixels(bitmap, bitmap.width, bitmap.height);
  } finally {
    bitmap.close();
  }
}

// One run at a time: the session refuses a second one.
let running = Promise.resolve();
function predict({ session, about }, image) {
  const found = running.then(async () => {
    const feeds = {};
    for (const { name, shape, preprocess } of about.inputs) {
      const crop = cropPixels(image.data, image.width, image.height, preprocess);
      feeds[name] = new ort.Tensor("uint8", crop, [1, ...shape.slice(1)]);
    }
    const outputs = await session.run(feeds);
    return {
      probabilities: outputs.probabilities.data,
      pValue: outputs.p_values ? outputs.p_values.data[0] : null,
      ranks: outputs.ranks ? outputs.ranks.data : null,
    };
  });
  running = found.catch(() => {});
  return found;
}

function readOptions(about) {
  const share = (checked, value) => (element(checked).checked ? Number(element(value).value) / 100 : null);
  const top = Math.min(Math.max(Math.trunc(Number(element("top").value)) || 1, 1), about.labels.length);
  const options = { top, reject: share("reject", "rate"), coverage: share("sets", "coverage") };
  checkOptions(about, options);
  return options;
}

// The answer of a row as elements; bars for the best classes.
function describeRow(row) {
  const box = document.createElement("div");
  if (row.error) {
    box.className = "wrong";
    box.textContent = row.error;
    return [box];
  }
  const answer = document.createElement("strong"), list = document.createElement("ul");
  answer.textContent = row.label;
  list.append(...row.top.map(({ label, probability }) => {
    const item = document.createElement("li"), words = document.createElement("div");
    const name = document.createElement("span"), number = document.createElement("span");
    const bar = document.createElement("progress");
    item.dataset.p = probability;
    words.className = "words";
    name.textContent = label;
    number.textContent = `${(100 * probability).toFixed(1)} %`;
    [bar.className, bar.max, bar.value] = ["bar", 1, probability];
    bar.setAttribute("aria-hidden", "true");
    words.append(name, number);
    item.append(words, bar);
    return item;
  }));
  const more = [];
  if (row.pValue !== undefined) {
    more.push(row.pValue < 0.0005 ? "p-value below 0.001" : `p-value ${row.pValue.toFixed(3)}`);
  }
  if (row.set) more.push(`one of: ${row.set.join(", ")}`);
  box.className = "more";
  box.textContent = more.join(" · ");
  return [answer, list, box];
}

// Images that were looked at, in order: path, what the model found or the error, and the file.
let images = [];

function showImage(about, one, options) {
  const row = one.error ? { path: one.path, error: one.error } : makeRow(about, one.path, one.found, options);
  const item = document.createElement("li"), side = document.createElement("div"), name = document.createElement("div");
  item.dataset.path = one.path;
  name.className = "path";
  name.textContent = one.path;
  side.className = "side";
  side.append(name, ...describeRow(row));
  if (!one.error) {
    const picture = document.createElement("img");
    const address = URL.createObjectURL(one.file);
    picture.onload = picture.onerror = () => URL.revokeObjectURL(address);
    [picture.alt, picture.src] = ["", address];
    item.append(picture);
  }
  item.append(side);
  return item;
}

function showCounts() {
  element("save").hidden = element("clear").hidden = images.length === 0;
  element("hidden-rows").hidden = images.length <= MOST_SHOWN;
  element("hidden-rows").textContent = `… and ${images.length - MOST_SHOWN} earlier images, which are in the CSV file.`;
}

// Answers again with other options; nothing is looked at again.
async function showAll() {
  const { about } = await loading;
  try {
    const options = readOptions(about), shown = images.slice(-MOST_SHOWN).reverse();
    element("answers").replaceChildren(...shown.map((one) => showImage(about, one, options)));
    showCounts();
    if (element("state").classList.contains("wrong")) showStatus("Ready.");
  } catch (error) {
    showStatus(error.message, true);
  }
}

const loading = load();
loading.then(() => showStatus("Ready."), (error) => showStatus(`The model cannot be loaded: ${error.message}`, true));
let stopped = false, busy = Promise.resolve();

// Looks at files one after the other; those given meanwhile wait. files: {file, path} each.
function classify(files) {
  busy = busy.then(() => classifyNow(files));
  return busy;
}

async function classifyNow(files) {
  let model, options;
  try {
    model = await loading;
  } catch {
    return; // the status says it already
  }
  try {
    options = readOptions(model.about);
  } catch (error) {
    showStatus(error.message, true);
    return;
  }
  if (!files.length) {
    showStatus("There are no images in that.", true);
    return;
  }
  stopped = false;
  element("stop").hidden = files.length === 1;
  const began = performance.now();
  let done = 0, unreadable = 0;
  for (const { file, path } of files) {
    if (stopped) break;
    showStatus(files.length === 1 ? `Looking at ${path} …` : `Looking at image ${done + 1} of ${files.length}: ${path} …`);
    const one = { file, path, found: null, error: null };
    try {
      one.found = await predict(model, await readPixels(file));
    } catch (error) {
      one.error = `cannot be read as an image by this browser (${error.message})`;
      unreadable += 1;
    }
    done += 1;
    images.push(one);
    try {
      options = readOptions(model.about); // they may have changed meanwhile
    } catch { /* the last good ones stay */ }
    element("answers").prepend(showImage(model.about, one, options));
    while (element("answers").children.length > MOST_SHOWN) element("answers").lastElementChild.remove();
    showCounts();
  }
  element("stop").hidden = true;
  const seconds = `${((performance.now() - began) / 1000).toFixed(1)} s in this browser`;
  const bad = unreadable ? `; ${unreadable} cannot be read` : "";
  if (files.length > 1) showStatus(`${done} images: ${seconds}${bad}.${stopped ? " Stopped." : ""}`, unreadable > 0);
  else if (unreadable) showStatus(`${files[0].path} cannot be read as an image by this browser.`, true);
  else showStatus(`${files[0].path}: ${seconds}.`);
}

const named = (file) => ({ file, path: file.webkitRelativePath || file.name || "pasted image" });
const isImage = ({ file, path }) => file.type.startsWith("image/") || IMAGE.test(path);
const isShown = ({ path }) => !path.split("/").some((part) => part.startsWith(".") || part === "__MACOSX");

// The files of dropped items, with those of folders; a folder gives its entries a hundred at a time.
async function listDropped(transfer) {
  const entries = Array.from(transfer.items || []).map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry());
  if (!entries.some((entry) => entry && entry.isDirectory)) return Array.from(transfer.files).map(named);
  const found = [];
  async function walk(entry, above) {
    const path = above ? `${above}/${entry.name}` : entry.name;
    if (entry.isFile) {
      found.push({ file: await new Promise((give, fail) => entry.file(give, fail)), path, within: above !== "" });
      return;
    }
    const reader = entry.createReader(), inner = [];
    for (;;) {
      const some = await new Promise((give, fail) => reader.readEntries(give, fail));
      if (!some.length) break;
      inner.push(...some);
    }
    inner.sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const one of inner) await walk(one, path);
  }
  for (const entry of entries) if (entry) await walk(entry, "");
  return found.filter((one) => !one.within || (isImage(one) && isShown(one)));
}

const drop = element("drop");
element("file").addEventListener("change", (event) => {
  const files = Array.from(event.target.files).map(named);
  event.target.value = ""; // so that the same file can be chosen again
  if (files.length) classify(files);
});
element("folder").addEventListener("change", (event) => {
  const files = Array.from(event.target.files).map(named).filter((one) => isImage(one) && isShown(one));
  event.target.value = "";
  classify(files.sort((a, b) => (a.path < b.path ? -1 : 1)));
});
addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", () => drop.classList.remove("over"));
addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  classify(await listDropped(event.dataTransfer));
});
addEventListener("paste", (event) => {
  const files = Array.from(event.clipboardData.files).map(named);
  if (files.length) classify(files);
});
for (const id of ["top", "reject", "rate", "sets", "coverage"]) element(id).addEventListener("change", showAll);
element("stop").addEventListener("click", () => { stopped = true; });
element("clear").addEventListener("click", () => {
  images = [];
  showAll();
});
element("save").addEventListener("click", async () => {
  const { about } = await loading;
  try {
    const options = readOptions(about);
    const rows = images.map((one) => (one.error ? one : makeRow(about, one.path, one.found, options)));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([formatTable(listColumns(about, options), rows)], { type: "text/csv" }));
    link.download = `${about.name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    showStatus(error.message, true);
  }
});

// The camera: frame after frame, as fast as the model is.
let stream = null;

async function watch(own) {
  const model = await loading, video = element("video");
  while (stream === own) {
    if (video.videoWidth) {
      const found = await predict(model, drawPixels(video, video.videoWidth, video.videoHeight));
      if (stream !== own) return;
      try {
        const row = makeRow(model.about, "camera", found, readOptions(model.about));
        element("live-answer").replaceChildren(...describeRow(row));
      } catch (error) {
        showStatus(error.message, true);
      }
    }
    await new Promise((next) => setTimeout(next, 30));
  }
}

function stopCamera() {
  if (stream) stream.getTracks().forEach((track) => track.stop());
  stream = null;
  element("video").srcObject = null;
  element("live").hidden = true;
  element("camera").textContent = "Use the camera";
  element("camera").setAttribute("aria-pressed", "false");
}

element("camera").addEventListener("click", async () => {
  if (stream) {
    stopCamera();
    return;
  }
  try {
    if (!navigator.mediaDevices) throw new Error("browsers give it only to https pages and to this machine's own");
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
    const video = element("video");
    video.srcObject = stream;
    element("live").hidden = false;
    element("camera").textContent = "Stop the camera";
    element("camera").setAttribute("aria-pressed", "true");
    await video.play();
    await watch(stream);
  } catch (error) {
    stopCamera();
    showStatus(`The camera cannot be used: ${error.message}`, true);
  }
});
