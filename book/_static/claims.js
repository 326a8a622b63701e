// A filter above the ledger of claims. Without this script the whole table shows.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.claims");
  const rows = [...table.querySelectorAll("tbody tr")];
  const text = (row, column) => row.cells[column].textContent.trim();
  const values = (column) => [...new Set(rows.map((row) => text(row, column)))];

  // On a phone the rows are stacked; the roles keep it a table for who listens to it.
  table.setAttribute("role", "table");
  table.querySelectorAll("thead, tbody").forEach((part) => part.setAttribute("role", "rowgroup"));
  table.querySelectorAll("tr").forEach((row) => row.setAttribute("role", "row"));
  table.querySelectorAll("th").forEach((cell) => cell.setAttribute("role", "columnheader"));
  table.querySelectorAll("td").forEach((cell) => cell.setAttribute("role", "cell"));

  const form = document.createElement("form");
  form.className = "claims-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the claims");
  const add = (name, control) => {
    const label = document.createElement("label");
    label.append(name, " ", control);
    form.append(label);
    return control;
  };
  const choice = (name, column) => {
    const select = document.createElement("select");
    select.append(new Option("all", ""), ...values(column).map((value) => new Option(value, value)));
    return add(name, select);
  };
  const section = choice("Section", 0);
  const status = choice("Status", 2);
  const search = add("Text", Object.assign(document.createElement("input"), { type: "search" }));
  const count = form.appendChild(document.createElement("output"));

  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = Boolean(
        (section.value && section.value !== text(row, 0)) ||
        (status.value && status.value !== text(row, 2)) ||
        (wanted && !row.textContent.toLowerCase().includes(wanted))
      );
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  (table.closest(".pst-scrollable-table-container") ?? table).before(form);
  filter();
});
