
"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const make = (name, properties, ...content) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...content);
    return made;
  };
  const status = make("div", { className: "said" });
  status.setAttribute("role", "status");
  document.body.append(status);
  const say = (text) => { status.textContent = text; };

  // The tree map: one view at a time, without moving the page.
  const map = document.getElementById("map");
  if (map) {
    map.classList.add("live");
    document.querySelector("#areas .hint").append(" Escape goes back.");
    const current = () => map.querySelector(".view.shown");
    const show = (view) => {
      current()?.classList.remove("shown");
      view.classList.add("shown");
      say(view.getAttribute("aria-label"));
    };
    const linked = location.hash ? document.getElementById(location.hash.slice(1)) : null;
    show(linked && map.contains(linked) && linked.matches(".view") ? linked : map.querySelector(".view.first"));
    const enter = (view, chosen) => {
      show(view);
      (chosen || view.querySelector("a.tile") || view).focus({ preventScroll: true });
    };
    map.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const view = document.getElementById(link.hash.slice(1));
      enter(view, link.closest(".measures") ? view.querySelector(".measures [aria-current]") : null);
    });
    map.addEventListener("keydown", (event) => {
      const here = current();
      if (event.key !== "Escape" || !here.dataset.parent) return;
      event.preventDefault();
      const above = document.getElementById(here.dataset.parent);
      enter(above, above.querySelector(`a.tile[href="#${here.id}"]`));
    });
  }

  // Tables: every head sorts; in a tree, siblings are sorted and stay below their parent.
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.b === undefined ? cell.textContent : Number(cell.dataset.b);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const forest = (rows) => {
    const roots = [], above = [];
    for (const row of rows) {
      const node = { row, below: [] }, depth = Number(row.dataset.depth || 0);
      above.length = depth;
      (depth ? above[depth - 1].below : roots).push(node);
      above.push(node);
    }
    return roots;
  };
  const flattened = (nodes) => nodes.flatMap((node) => [node.row, ...flattened(node.below)]);
  const sort = (table, column, sign) => {
    const body = table.tBodies[0], roots = forest(body.rows);
    const order = (nodes) => {
      nodes.sort((a, b) => sign * compare(value(a.row, column), value(b.row, column)));
      nodes.forEach((node) => order(node.below));
      return nodes;
    };
    body.append(...flattened(order(roots)));
  };
  for (const table of all("table.sorts")) {
    all("thead th", table).forEach((head, column) => {
      const title = head.textContent, button = make("button", { type: "button" }, title);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const isNumber = table.tBodies[0].rows[0]?.cells[column].dataset.b !== undefined;
        const before = head.getAttribute("aria-sort"), first = isNumber ? "descending" : "ascending";
        const after = before === null ? first : before === "ascending" ? "descending" : "ascending";
        all("[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", after);
        sort(table, column, after === "ascending" ? 1 : -1);
        say(`Sorted by ${title}, ${after}.`);
      });
    });
  }

  // The tree: components that hold others open and close.
  const MOST_OPEN = 60;
  for (const table of all("table.tree")) {
    const fold = () => {
      let closed = Infinity;
      for (const row of table.tBodies[0].rows) {
        const depth = Number(row.dataset.depth);
        if (depth <= closed) closed = Infinity;
        row.hidden = depth > closed;
        const button = row.querySelector("button.name");
        if (closed === Infinity && button?.getAttribute("aria-expanded") === "false") closed = depth;
      }
    };
    const rows = [...table.tBodies[0].rows];
    rows.forEach((row, index) => {
      if (Number(rows[index + 1]?.dataset.depth ?? 0) <= Number(row.dataset.depth)) return;
      const name = row.querySelector(".name");
      const button = make("button", { type: "button", className: "name" }, name.textContent);
      button.setAttribute("aria-expanded", String(rows.length <= MOST_OPEN || row.dataset.depth === "0"));
      button.addEventListener("click", () => {
        button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false"));
        fold();
      });
      name.replaceWith(button);
    });
    fold();
  }

  // Exact bytes instead of readable ones.
  const sizes = all("#components td[data-b]");
  if (sizes.length) {
    const box = make("input", { type: "checkbox" });
    const label = make("label", {}, box, "exact bytes");
    const first = document.querySelector("#components .scroll");
    first.before(make("div", { className: "options" }, label));
    box.addEventListener("change", () => {
      for (const cell of sizes) {
        cell.dataset.other ??= Number(cell.dataset.b).toLocaleString("en-US");
        [cell.textContent, cell.dataset.other] = [cell.dataset.other, cell.textContent];
      }
    });
  }

  // Commands: a button that copies.
  for (const command of all("code.command")) {
    const button = make("button", { type: "button" }, "Copy");
    const row = make("div", { className: "withcopy" });
    command.replaceWith(row);
    row.append(command, button);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
        say("Copied.");
      } catch {
        getSelection().selectAllChildren(command);
        button.textContent = "Selected";
        say("Selected; copy it with the keyboard.");
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
})();
