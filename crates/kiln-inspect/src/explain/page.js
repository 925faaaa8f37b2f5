"use strict";
(function () {
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const kernels = (element) => (element.dataset.k || "").split(" ").filter(Boolean);

  // Picking a kernel lights up its row, nodes, lines, memory and code; picking it again lets go.
  let picked = null;
  function pick(kernel, from) {
    picked = kernel === picked ? null : kernel;
    const graph = picked === null ? null : picked.split("-")[0];
    all("section.graph").forEach((section) => section.classList.toggle("picking", section.id === graph));
    all("[data-k]").forEach((element) => element.classList.toggle("on", picked !== null && kernels(element).includes(picked)));
    if (picked === null) return;
    all("#" + graph + " .listing").forEach((listing) => {
      const first = listing.querySelector(".on");
      if (first && !listing.contains(from)) {
        listing.scrollTop = first.offsetTop - listing.offsetTop - listing.clientHeight / 3;
      }
    });
  }
  document.addEventListener("click", (event) => {
    if (event.target.closest("a, summary, button")) return;
    const element = event.target.closest("[data-k]");
    if (!element || element.tagName === "DETAILS") return;
    const own = kernels(element);
    if (own.length) pick(own.includes(picked) && own.length > 1 ? own[(own.indexOf(picked) + 1) % own.length] : own[0], element);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && picked !== null) pick(picked);
    const row = event.target.closest && event.target.closest("tr[data-k]");
    if (row && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      pick(kernels(row)[0], row);
    }
  });

  // A table is sorted by a click on a heading; numbers start with the largest.
  all("table.sortable").forEach((table) => {
    all("th", table).forEach((heading, column) => {
      heading.addEventListener("click", () => {
        const up = heading.classList.contains("sorted") ? !heading.classList.contains("up") : heading.dataset.up === "1";
        all("th", table).forEach((other) => other.classList.remove("sorted", "up"));
        heading.classList.add("sorted");
        heading.classList.toggle("up", up);
        const body = table.tBodies[0];
        const value = (row) => row.cells[column].dataset.v || row.cells[column].textContent;
        const compare = (a, b) => {
          const [x, y] = [value(a), value(b)];
          const numbers = !isNaN(x) && !isNaN(y);
          return numbers ? x - y : x < y ? -1 : x > y ? 1 : 0;
        };
        Array.from(body.rows).sort((a, b) => (up ? compare(a, b) : compare(b, a))).forEach((row) => body.append(row));
      });
    });
  });

  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
