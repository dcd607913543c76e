"use strict";
// The page is complete without this script; it adds sorting, filtering, folding and copying.
(() => {
  const byId = (id) => document.getElementById(id);
  for (const element of document.querySelectorAll("[data-needs-script]")) element.hidden = false;

  const themes = ["system", "light", "dark"];
  const theme = byId("theme");
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "system") + 1) % 3];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    theme.textContent = `Colours: ${next}`;
    theme.setAttribute("aria-label", `Colour scheme: ${next === "system" ? "as the system" : next}`);
  });

  const folds = () => [...document.querySelectorAll("details")];
  const unfold = byId("unfold");
  const setFolds = (open) => {
    for (const fold of folds()) fold.open = open;
    unfold.textContent = open ? "Fold all" : "Unfold all";
    unfold.setAttribute("aria-expanded", String(open));
  };
  unfold.addEventListener("click", () => setFolds(unfold.getAttribute("aria-expanded") !== "true"));

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = folds().filter((fold) => !fold.open);
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
  });

  const openTarget = () => {
    const target = location.hash && byId(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  const gains = byId("gains");
  if (gains) {
    const body = gains.tBodies[0];
    const find = byId("find");
    const only = byId("only");
    const filter = () => {
      const wanted = find.value.trim().toLowerCase();
      let shown = 0;
      for (const row of body.rows) {
        row.hidden = !row.dataset.find.includes(wanted) || (only.value && row.dataset.verdict !== only.value);
        shown += row.hidden ? 0 : 1;
      }
      byId("shown").textContent = `${shown} of ${body.rows.length} shown`;
    };
    if (find) {
      find.addEventListener("input", filter);
      only.addEventListener("change", filter);
      filter();
    }

    const key = (row, column, kind) => {
      const cell = row.cells[column];
      if (kind === "text") return cell.textContent.trim();
      return cell.dataset.value === "" ? -Infinity : Number(cell.dataset.value);
    };
    const collator = new Intl.Collator("en", { numeric: true });
    const compare = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b || 0);
    for (const head of gains.tHead.rows[0].cells) {
      const kind = head.dataset.sort;
      if (!kind) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        for (const other of gains.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const column = head.cellIndex;
        body.append(...[...body.rows].sort((a, b) => sign * compare(key(a, column, kind), key(b, column, kind))));
      });
    }
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let said = "Copied.";
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        said = "Selected: press Ctrl+C to copy.";
      }
      byId("copied").textContent = said;
    });
  }
})();
