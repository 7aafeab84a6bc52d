"use strict";
// Moves the pieces of the timeline to zoom, says what each event is, and highlights its micro-batch.
(() => {
  const content = JSON.parse(document.getElementById("pipecut-data").textContent);
  const figure = document.getElementById("gantt");
  const svg = document.getElementById("timeline");
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const space = "http://www.w3.org/2000/svg";
  const set = Object.fromEntries(Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
  const height = svg.viewBox.baseVal.height;
  const ticks = svg.querySelector(".ticks");
  const gap = svg.querySelector(".gap");
  const kinds = {
    F: "forward pass", B: "backward pass", I: "input gradient", W: "weight gradient",
    S: "synchronisation of gradients", U: "weight update", a: "activation sent", g: "gradient sent",
  };
  const length = Math.max(1, set.head + set.gap + set.makespan - set.tail);
  const least = Math.min(length, Math.max(20, length / 5000));
  let width = svg.viewBox.baseVal.width, from = 0, to = length, chosen = null;

  const pressed = (time) => time <= set.head ? time
    : time >= set.tail ? set.head + set.gap + time - set.tail
    : set.head + set.gap * (time - set.head) / (set.tail - set.head);
  const events = [...svg.querySelectorAll("[data-i]")].map((node) => {
    const [kind, stage, microBatch, start, stop, critical] = content.timeline.events[Number(node.dataset.i)];
    return { node, box: node.firstElementChild, text: node.querySelector("text"), kind, stage, microBatch, start, stop,
      critical, left: pressed(start), right: pressed(stop) };
  });
  const byNode = new Map(events.map((event) => [event.node, event]));
  const lanes = new Map();
  for (const event of events) {
    const lane = content.stages[event.stage].rank + ("ag".includes(event.kind) ? 0.5 : 0);
    event.lane = lane;
    if (!lanes.has(lane)) lanes.set(lane, []);
    lanes.get(lane).push(event);
  }
  for (const lane of lanes.values()) lane.sort((one, other) => one.start - other.start || one.stop - other.stop);

  const round = (time) => {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find((one) => time >= one[1]) || ["ns", 1];
    return `${Number((time / size).toPrecision(10)).toLocaleString("en-US", { maximumFractionDigits: 9 })} ${unit}`;
  };
  const exact = (time) => `${time.toLocaleString("en-US")} ns`;
  const describe = (event) => {
    const where = event.kind === "a" ? `stage ${event.stage} to ${event.stage + 1}`
      : event.kind === "g" ? `stage ${event.stage + 1} to ${event.stage}` : `stage ${event.stage}`;
    const lines = [`${kinds[event.kind]}, micro-batch ${event.microBatch}, ${where}`,
      `from ${exact(event.start)} to ${exact(event.stop)}`, `takes ${exact(event.stop - event.start)}`];
    if (event.critical) lines.push("on the critical chain");
    return lines;
  };

  const x = (at) => set.left + (width - set.left - set.right) * (at - from) / (to - from);
  const piece = (name, attributes, parent) => {
    const node = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent.append(node);
    return node;
  };
  function drawTicks() {
    ticks.replaceChildren();
    const wanted = (to - from) / Math.max(2, Math.floor((width - set.left) / 115));
    let step = 10 ** Math.floor(Math.log10(wanted));
    step = Math.max(1, step * ([1, 2, 5].find((factor) => factor * step >= wanted) || 10));
    const shown = (at) => at <= set.head ? at : at - set.head - set.gap + set.tail;
    let taken = 0;
    const first = Math.floor(shown(from) / step) * step;
    const last = shown(to);
    let count = 0;
    for (let time = first; time <= last && count < 60; time += step) {
      if (time > set.head && time < set.tail) time = Math.ceil(set.tail / step) * step;
      const at = x(pressed(time));
      if (at < set.left - 0.5 || at > width) continue;
      count += 1;
      piece("line", { x1: at, x2: at, y1: set.top - 4, y2: set.foot + 4, class: "tick" }, ticks);
      if (at - 32 < taken || at > width - 30) continue;
      piece("text", { x: at, y: set.foot + 18, class: "note small middle" }, ticks).textContent = round(time);
      taken = at + 32;
    }
  }
  function draw() {
    for (const event of events) {
      const left = x(event.left), right = x(event.right);
      const out = right < set.left || left > width;
      event.node.style.display = out ? "none" : "";
      if (out) continue;
      const seen = Math.max(left, set.left), end = Math.min(right, width - set.right);
      event.box.setAttribute("x", Math.max(left, set.left - 20).toFixed(2));
      event.box.setAttribute("width", Math.max(1, Math.min(right, width + 20) - Math.max(left, set.left - 20)).toFixed(2));
      event.box.classList.toggle("thin", right - left < 3);
      if ("ag".includes(event.kind)) continue;
      const roomy = end - seen > 7.5 * String(event.microBatch).length + 3;
      if (roomy && !event.text) {
        const foot = Number(event.box.getAttribute("y")) + Number(event.box.getAttribute("height")) / 2 + 4;
        event.text = piece("text", { y: foot, class: "number middle" }, event.node);
        event.text.textContent = String(event.microBatch);
      }
      if (!event.text) continue;
      event.text.setAttribute("x", ((seen + end) / 2).toFixed(2));
      event.text.classList.toggle("hidden", !roomy);
    }
    if (gap) {
      gap.setAttribute("x", x(set.head));
      gap.setAttribute("width", x(set.head + set.gap) - x(set.head));
    }
    drawTicks();
    figure.classList.toggle("moves", to - from < length);
  }
  function show(start, end) {
    const span = Math.min(length, Math.max(least, end - start));
    from = Math.min(Math.max(0, start), length - span);
    to = from + span;
    draw();
  }
  function zoom(factor, around = (from + to) / 2) {
    show(around - (around - from) * factor, around + (to - around) * factor);
  }
  const under = (clientX) => {
    const box = svg.getBoundingClientRect();
    const at = (clientX - box.left) * width / box.width;
    return from + (to - from) * (at - set.left) / (width - set.left - set.right);
  };
  function fit() {
    width = Math.max(720, figure.clientWidth);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const lane of svg.querySelectorAll(".lane")) lane.setAttribute("width", width - set.left - set.right);
    svg.querySelector("clipPath rect").setAttribute("width", width - set.left);
    draw();
  }

  let mates = [];
  function highlight(event) {
    for (const mate of mates) mate.node.classList.remove("mate");
    mates = event ? events.filter((one) => one.microBatch === event.microBatch && !"SU".includes(one.kind)) : [];
    for (const mate of mates) mate.node.classList.add("mate");
  }
  function choose(event) {
    if (chosen) chosen.node.classList.remove("chosen");
    chosen = event;
    event.node.classList.add("chosen");
    highlight(event);
    said.textContent = describe(event).join(", ");
    const span = to - from;
    if (event.left < from || event.right > to) show((event.left + event.right - span) / 2, (event.left + event.right + span) / 2);
  }
  function step(key) {
    if (!chosen) return choose(lanes.get(0)[0]);
    const lane = lanes.get(chosen.lane);
    const along = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (along) return choose(lane[Math.min(lane.length - 1, Math.max(0, lane.indexOf(chosen) + along))]);
    const order = [...lanes.keys()].sort((one, other) => one - other);
    const next = order[order.indexOf(chosen.lane) + (key === "ArrowDown" ? 1 : -1)];
    if (next === undefined) return undefined;
    const middle = (event) => Math.abs(event.start + event.stop - chosen.start - chosen.stop);
    return choose(lanes.get(next).reduce((best, event) => middle(event) < middle(best) ? event : best));
  }

  const chain = events.filter((event) => event.critical).sort((one, other) => one.start - other.start || one.stop - other.stop);
  function along(by) {
    const at = chain.indexOf(chosen);
    if (chain.length) choose(chain[at < 0 ? (by > 0 ? 0 : chain.length - 1) : Math.min(chain.length - 1, Math.max(0, at + by))]);
  }

  let drag = null, pinch = null;
  const fingers = new Map();
  const dragged = (yes) => { document.documentElement.dataset.dragged = yes ? "yes" : "no"; };
  function spread() {
    const [one, other] = [...fingers.values()];
    return { middle: (one + other) / 2, apart: Math.max(1, Math.abs(one - other)) };
  }
  svg.addEventListener("pointermove", (pointer) => {
    if (fingers.has(pointer.pointerId)) fingers.set(pointer.pointerId, pointer.clientX);
    if (pinch && fingers.size === 2) {
      const { middle, apart } = spread();
      zoom(pinch / apart, under(middle));
      pinch = apart;
      dragged(true);
      return;
    }
    if (drag) {
      if (Math.abs(pointer.clientX - drag.at) > 4) { dragged(true); svg.setPointerCapture(pointer.pointerId); }
      const box = svg.getBoundingClientRect();
      const moved = (pointer.clientX - drag.at) * width / box.width / (width - set.left - set.right) * (drag.to - drag.from);
      show(drag.from - moved, drag.to - moved);
      return;
    }
    const event = byNode.get(pointer.target.closest("[data-i]"));
    tip.hidden = !event;
    highlight(event || chosen);
    if (!event) return;
    tip.textContent = describe(event).join("\n");
    tip.style.left = `${Math.max(8, Math.min(pointer.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    const below = pointer.clientY + 18;
    tip.style.top = `${below + tip.offsetHeight > innerHeight - 8 ? pointer.clientY - tip.offsetHeight - 12 : below}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; highlight(chosen); });
  svg.addEventListener("pointerdown", (pointer) => {
    if (pointer.button !== 0) return;
    dragged(false);
    fingers.set(pointer.pointerId, pointer.clientX);
    pinch = fingers.size === 2 ? spread().apart : null;
    drag = null;
    if (pinch || to - from >= length) return;
    drag = { at: pointer.clientX, from, to };
    tip.hidden = true;
  });
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, (pointer) => { fingers.delete(pointer.pointerId); drag = null; pinch = null; });
  }
  svg.addEventListener("click", (click) => {
    const event = byNode.get(click.target.closest("[data-i]"));
    if (event && document.documentElement.dataset.dragged !== "yes") choose(event);
  });
  svg.addEventListener("dblclick", () => show(0, length));
  svg.addEventListener("wheel", (wheel) => {
    if (!wheel.ctrlKey && !wheel.metaKey && document.activeElement !== figure) return;
    wheel.preventDefault();
    zoom(Math.exp(Math.max(-1, Math.min(1, wheel.deltaY / 300))), under(wheel.clientX));
  }, { passive: false });
  const keys = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => show(0, length), c: () => along(1), C: () => along(-1) };
  figure.addEventListener("keydown", (key) => {
    const arrow = key.key.startsWith("Arrow");
    if (key.ctrlKey || key.metaKey || key.altKey || !(arrow || keys[key.key])) return;
    key.preventDefault();
    if (arrow) step(key.key); else keys[key.key]();
  });
  const buttons = { in: keys["+"], out: keys["-"], all: keys["0"] };
  for (const button of document.querySelectorAll("[data-chain]")) button.addEventListener("click", () => along(Number(button.dataset.chain)));
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", buttons[button.dataset.zoom]);
  document.querySelector(".tools").hidden = false;
  addEventListener("resize", fit);
  fit();
  document.documentElement.dataset.ready = String(events.length);
})();
