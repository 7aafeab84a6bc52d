// Chooses a stage or a layer anywhere on the page and shows it everywhere; lists the layers that a search finds.
(() => {
  const content = JSON.parse(document.getElementById("pipecut-data").textContent);
  const most = 200;
  const get = (name) => document.getElementById(name);
  const wanted = get("wanted"), rows = get("rows"), matched = get("matched"), bar = get("choice");
  const space = document.querySelector("svg").namespaceURI;
  const printable = (name) => name.replace(/\p{C}|\p{Zl}|\p{Zp}/gu, "?");
  const scaled = (value, units) => {
    const [unit, size] = units.find((one) => value >= one[1]) || units[units.length - 1];
    return size === 1 ? `${value} ${unit}` : `${(value / size).toPrecision(4)} ${unit}`;
  };
  const time = (value) => scaled(value, [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]);
  const bytes = (value) => scaled(value, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
  const firsts = [];
  content.stages.reduce((first, stage) => { firsts.push(first); return first + stage.layers; }, 0);
  let stage = null, layer = null, found = [], from = 0;

  const about = [...document.querySelectorAll("[data-stage]")].filter((node) => !node.closest("#other"))
    .map((node) => [node, node.dataset.stage.split(" ").map(Number)]);
  const drawn = [...document.querySelectorAll("#timeline [data-i]")].map((node) => {
    const [kind, at] = content.timeline.events[Number(node.dataset.i)];
    return [node, "ag".includes(kind) ? [at, at + 1] : [at]];
  });
  const boxes = [...document.querySelectorAll("#plan [data-layer]")].map((node) => [node, Number(node.dataset.layer)])
    .sort((one, other) => one[1] - other[1]);

  function said() {
    if (layer !== null) {
      const [name, at, compute, weights, form] = content.layers[layer];
      const split = form === null ? "" : `, split by ${content.splits[form] || `form ${form}`}`;
      return `layer ${printable(name)} in stage ${at}: computes ${time(compute)}, ${bytes(weights)} of weights${split}`;
    }
    const one = content.stages[stage], held = one.devices.map(([server, count]) => `${count} × ${content.servers[server].name}`);
    const words = [printable(held.join(" + ")), one.shared, one.split].filter(Boolean).join(", ");
    return `stage ${stage}: ${printable(one.first_layer)} … ${printable(one.last_layer)}, on ${words}; ${time(one.price.total_ns)}`
      + `, ${bytes(one.price.memory_bytes)} of ${bytes(one.price.capacity_bytes)}${one.slowest ? `; the ${content.claim.sums.called}` : ""}`;
  }
  function show() {
    document.documentElement.classList.toggle("choosing", stage !== null);
    for (const [node, stages] of [...about, ...drawn]) node.classList.toggle("picked", stages.includes(stage));
    for (const node of document.querySelectorAll("[data-pick]")) node.setAttribute("aria-pressed", String(Number(node.dataset.pick) === stage));
    for (const [node] of boxes) node.classList.remove("here");
    if (layer !== null) (boxes.find(([, last]) => last >= layer) || [document.createElement("i")])[0].classList.add("here");
    for (const row of rows.children) mark(row);
    bar.hidden = stage === null;
    if (stage !== null) bar.querySelector("p").textContent = said();
  }
  function mark(row) {
    const index = Number(row.dataset.at);
    row.classList.toggle("picked", content.layers[index][1] === stage);
    row.classList.toggle("here", index === layer);
    row.querySelector("button").setAttribute("aria-pressed", String(index === layer));
  }
  function pick(at, one = null) {
    const again = at === stage && one === layer;
    [stage, layer] = at === null || again ? [null, null] : [at, one];
    if (layer !== null && found.indexOf(layer) < 0) { wanted.value = ""; search(); }
    if (layer !== null) {
      const place = found.indexOf(layer);
      if (place < from || place >= from + most) { from = Math.floor(place / most) * most; list(); }
      const row = [...rows.children].find((node) => Number(node.dataset.at) === layer), box = rows.closest(".scroll");
      if (row) box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
    }
    show();
  }

  const square = (at) => {
    const svg = document.createElementNS(space, "svg"), rect = document.createElementNS(space, "rect");
    for (const [key, value] of [["class", "chip"], ["viewBox", "0 0 10 10"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
    for (const [key, value] of [["width", 10], ["height", 10], ["class", `s${at % Number(rows.dataset.colours)}`]]) rect.setAttribute(key, value);
    svg.append(rect);
    return svg;
  };
  function row(index) {
    const [name, at, compute, weights, form] = content.layers[index];
    const line = document.createElement("tr"), button = document.createElement("button");
    line.dataset.at = String(index);
    [button.type, button.className, button.textContent] = ["button", "pick", printable(name)];
    const split = form === null ? "" : content.splits[form] || `form ${form}`;
    ["", String(at), time(compute), bytes(weights), split].forEach((text, column) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (column === 0) cell.append(button);
      if (column === 1) cell.prepend(square(at));
      if (column === 2 || column === 3) cell.className = "num";
      line.append(cell);
    });
    mark(line);
    return line;
  }
  function list() {
    const shown = found.slice(from, from + most), number = (value) => value.toLocaleString("en-US");
    rows.replaceChildren(...shown.map(row));
    rows.closest(".scroll").scrollTop = 0;
    const part = shown.length < found.length ? `, of these number ${number(from + 1)} to ${number(from + shown.length)}` : "";
    matched.textContent = `${number(found.length)} of ${number(content.layers.length)} layers${part}`;
    for (const button of document.querySelectorAll("[data-turn]")) {
      const next = from + most * Number(button.dataset.turn);
      button.hidden = found.length <= most;
      button.disabled = next < 0 || next >= found.length;
    }
  }
  function search() {
    const words = wanted.value.trim().toLowerCase(), at = /^stage *([0-9]+)$/.exec(words);
    const fits = (one) => at ? one[1] === Number(at[1]) : one[0].toLowerCase().includes(words);
    found = content.layers.flatMap((one, index) => fits(one) ? [index] : []);
    from = 0;
    list();
  }

  document.addEventListener("click", (event) => {
    const on = (words) => event.target.closest(words);
    const turn = on("[data-turn]"), next = on("[data-next]"), box = on("#plan [data-layer]"), event_ = on("#timeline [data-i]");
    const one = on("#rows tr"), named = on("[data-pick]"), part = on("svg [data-stage]");
    if (turn) { from += most * Number(turn.dataset.turn); list(); }
    else if (next) pick(Number(next.dataset.next) ? (stage + Number(next.dataset.next) + content.stages.length) % content.stages.length : null);
    else if (one) pick(content.layers[Number(one.dataset.at)][1], Number(one.dataset.at));
    else if (box) {
      const last = Number(box.dataset.layer), before = boxes.filter(([, end]) => end < last).pop();
      pick(content.layers[last][1], Math.max(before ? before[1] + 1 : 0, firsts[content.layers[last][1]]));
    } else if (named) pick(Number(named.dataset.pick));
    else if (event_ && document.documentElement.dataset.dragged !== "yes") pick(content.timeline.events[Number(event_.dataset.i)][1]);
    else if (part && !part.closest("#other")) pick(Number(part.dataset.stage.split(" ")[0]));
  });
  document.addEventListener("keydown", (key) => {
    if (key.key === "Escape" && stage !== null) pick(null);
    const button = key.target.closest ? key.target.closest("#rows button") : null, step = { ArrowDown: 1, ArrowUp: -1 }[key.key];
    if (!button || !step) return;
    key.preventDefault();
    const line = step > 0 ? button.closest("tr").nextElementSibling : button.closest("tr").previousElementSibling;
    if (!line) return;
    line.querySelector("button").focus();
    const index = Number(line.dataset.at);
    if (index !== layer) pick(content.layers[index][1], index);
  });
  wanted.addEventListener("input", search);
  get("layers").hidden = false;
  search();
})();
