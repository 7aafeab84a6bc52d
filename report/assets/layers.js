// Lists the layers that a search finds, with their stage's colour; as many as fit in a list that stays quick.
(() => {
  const content = JSON.parse(document.getElementById("pipecut-data").textContent);
  const most = 300;
  const wanted = document.getElementById("wanted");
  const rows = document.getElementById("rows");
  const matched = document.getElementById("matched");
  const space = document.querySelector("svg").namespaceURI;
  const printable = (name) => name.replace(/\p{C}|\p{Zl}|\p{Zp}/gu, "?");
  const time = (value) => {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find((one) => value >= one[1]) || ["ns", 1];
    return `${size === 1 ? value : (value / size).toPrecision(4)} ${unit}`;
  };
  const chip = (stage) => {
    const svg = document.createElementNS(space, "svg"), rect = document.createElementNS(space, "rect");
    for (const [key, value] of [["class", "chip"], ["viewBox", "0 0 10 10"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
    for (const [key, value] of [["width", 10], ["height", 10], ["class", `s${stage % Number(rows.dataset.colours)}`]]) rect.setAttribute(key, value);
    svg.append(rect);
    return svg;
  };
  function row([name, stage, compute]) {
    const line = document.createElement("tr");
    const cells = [printable(name), "", time(compute)].map((text) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      line.append(cell);
      return cell;
    });
    cells[1].append(chip(stage), String(stage));
    cells[2].className = "num";
    return line;
  }
  function list() {
    const words = wanted.value.trim().toLowerCase();
    const stage = /^stage *([0-9]+)$/.exec(words);
    const found = content.layers.filter((one) => stage ? one[1] === Number(stage[1]) : one[0].toLowerCase().includes(words));
    rows.replaceChildren(...found.slice(0, most).map(row));
    const shown = found.length > most ? `, the first ${most} are shown` : "";
    matched.textContent = `${found.length.toLocaleString("en-US")} of ${content.layers.length.toLocaleString("en-US")} layers${shown}`;
  }
  wanted.addEventListener("input", list);
  document.getElementById("layers").hidden = false;
  list();
})();
