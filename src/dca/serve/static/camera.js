// The camera: photos of a class for as long as a button is held, and answers to what it sees.

import { $, pluralize, say } from "./elements.js";
import { post } from "./server.js";
import { upload } from "./files.js";

const SIDE = 720, EVERY_MS = 280, LIVE_PAUSE_MS = 250;

async function open(video) {
  if (!navigator.mediaDevices) {
    throw new Error("this browser gives the camera only to pages on this machine or with https: use localhost, or a proxy with TLS");
  }
  try {
    const wanted = { video: { facingMode: "environment", width: { ideal: 1280 } }, audio: false };
    video.srcObject = await navigator.mediaDevices.getUserMedia(wanted);
  } catch (error) {
    const why = error.name === "NotAllowedError" ? "the browser does not allow it: allow the camera for this page" : "no camera was found";
    throw new Error(`The camera cannot be used: ${why}.`);
  }
  await video.play();
}

function close(video) {
  if (video.srcObject) for (const track of video.srcObject.getTracks()) track.stop();
  video.srcObject = null;
}

function grab(video) {
  const scale = Math.min(1, SIDE / Math.max(video.videoWidth, video.videoHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(video.videoWidth * scale));
  canvas.height = Math.max(1, Math.round(video.videoHeight * scale));
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
}

// --- taking photos of a class -----------------------------------------------------------------

let held = null, taken = 0;

export async function takePhotos(label, onChange) {
  const box = $("camera"), video = $("camera-video");
  $("camera-title").textContent = `Photos of ${label}`;
  taken = 0;
  showTaken();
  box.showModal();
  try {
    await open(video);
  } catch (error) {
    box.close();
    return say(error.message, { bad: true });
  }
  const hold = $("camera-hold");
  const take = async () => {
    const blob = await grab(video);
    if (!blob) return;
    taken += 1;
    showTaken();
    const stamp = new Date().toISOString().replace(/\D/g, "").slice(0, 17);
    upload([{ name: `camera ${stamp}.jpg`, label, read: async () => blob }]).then(onChange);
  };
  const start = (event) => {
    event.preventDefault();
    if (held) return;
    take();
    held = setInterval(take, EVERY_MS);
    hold.classList.add("held");
  };
  const stop = () => {
    clearInterval(held);
    held = null;
    hold.classList.remove("held");
  };
  hold.onpointerdown = start;
  hold.onpointerup = hold.onpointercancel = hold.onpointerleave = stop;
  hold.onkeydown = (event) => { if (event.key === " " || event.key === "Enter") start(event); };
  hold.onkeyup = stop;
  hold.onclick = (event) => event.preventDefault();
  hold.focus();
  box.onclose = () => { stop(); close(video); if (taken) say(`${pluralize(taken, "photo")} of ${label}`); };
}

function showTaken() {
  $("camera-count").textContent = taken ? pluralize(taken, "photo") : "Move around the thing, and vary background and light.";
}

// --- answering what it sees -------------------------------------------------------------------

let live = false;
export const isLive = () => live;

// Calls onAnswer with each answer and its picture until `stopLive`.
export async function startLive(video, onAnswer) {
  await open(video);
  live = true;
  const look = async () => {
    if (!live) return;
    if (!document.hidden) {
      const blob = await grab(video);
      try {
        if (blob && live) onAnswer(await post("predict", blob), blob);
      } catch (error) {
        if (!error.passing) { stopLive(video); say(error.message, { bad: true }); }
      }
    }
    setTimeout(look, LIVE_PAUSE_MS);
  };
  look();
}

export function stopLive(video) {
  live = false;
  close(video);
}
