// Classifies a dropped, pasted or chosen image with the model beside this page.
"use strict";

const MOST_CLASSES = 5;
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
  element("about").textContent = `Classes: ${shown}${labels.length > 30 ? `, … (${labels.length} in all)` : ""}`;
  ort.env.wasm.wasmPaths = new URL("ort/", document.baseURI).href;
  // Threads need headers that plain file servers do not send.
  if (!globalThis.crossOriginIsolated) ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(await fetchBytes("model.onnx"), { executionProviders: ["wasm"] });
  return { labels, preprocess: about.preprocess, session };
}

// RGBA values of an image file: rotated as its EXIF data says, on white, without conversion of colours.
async function readPixels(file) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

async function predict({ session, preprocess }, file) {
  const image = await readPixels(file);
  const crop = cropPixels(image.data, image.width, image.height, preprocess);
  const images = new ort.Tensor("uint8", crop, [1, preprocess.size, preprocess.size, 3]);
  const found = await session.run({ images });
  return Array.from(found.probabilities.data);
}

function show(labels, found, file) {
  const order = found.map((p, c) => c).sort((a, b) => found[b] - found[a]).slice(0, MOST_CLASSES);
  element("classes").replaceChildren(...order.map((c) => {
    const row = document.createElement("li"), words = document.createElement("div");
    const label = document.createElement("span"), number = document.createElement("span");
    const bar = document.createElement("progress");
    row.dataset.p = found[c];
    words.className = "words";
    label.textContent = labels[c];
    number.textContent = `${(100 * found[c]).toFixed(1)} %`;
    [bar.className, bar.max, bar.value] = ["bar", 1, found[c]];
    bar.setAttribute("aria-hidden", "true");
    words.append(label, number);
    row.append(words, bar);
    return row;
  }));
  URL.revokeObjectURL(element("preview").src);
  element("preview").src = URL.createObjectURL(file);
  element("answer").hidden = false;
}

const loading = load();
loading.then(() => showStatus("Ready."), (error) => showStatus(`The model cannot be loaded: ${error.message}`, true));
let latest = 0;

async function classify(file) {
  const turn = ++latest;
  let model;
  try {
    model = await loading;
  } catch {
    return; // the status says it already
  }
  showStatus(`Looking at ${file.name || "the image"} …`);
  try {
    const began = performance.now(), found = await predict(model, file);
    if (turn !== latest) return;
    show(model.labels, found, file);
    showStatus(`${file.name || "Image"}: ${((performance.now() - began) / 1000).toFixed(1)} s in this browser.`);
  } catch (error) {
    element("answer").hidden = true;
    showStatus(`${file.name || "This"} cannot be read as an image by this browser (${error.message}).`, true);
  }
}

const drop = element("drop");
element("file").addEventListener("change", (event) => {
  if (event.target.files[0]) classify(event.target.files[0]);
  event.target.value = ""; // so that the same file can be chosen again
});
addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", () => drop.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  if (event.dataTransfer.files[0]) classify(event.dataTransfer.files[0]);
});
addEventListener("paste", (event) => event.clipboardData.files[0] && classify(event.clipboardData.files[0]));
