"use strict";
/* Only comfort: sorting, a filter box, and opened details on paper. The page says everything without it. */
document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0], heads = table.tHead.rows[0].cells;
  Array.prototype.forEach.call(heads, function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : head.className === "n";
      var rows = Array.prototype.slice.call(body.rows).map(function (row) {
        var value = row.cells[column].getAttribute("data-s");
        return [row, value === null ? null : head.className === "n" ? Number(value) : value];
      });
      rows.sort(function (a, b) {
        if (a[1] === null || b[1] === null) return (a[1] === null) - (b[1] === null);
        return (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : 0) * (down ? -1 : 1);
      });
      Array.prototype.forEach.call(heads, function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.forEach(function (entry) { body.appendChild(entry[0]); });
    });
  });
  if (body.rows.length < 12) return;
  var box = document.createElement("input"), wrap = document.createElement("label"), said = document.createElement("span");
  box.type = "search";
  said.className = "sr";
  said.setAttribute("role", "status");
  wrap.className = "filter";
  wrap.append("Filter ", box, said);
  table.parentNode.parentNode.insertBefore(wrap, table.parentNode);
  box.addEventListener("input", function () {
    var words = box.value.toLowerCase().split(/\s+/), shown = 0;
    Array.prototype.forEach.call(body.rows, function (row) {
      var text = row.textContent.toLowerCase();
      row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
      shown += !row.hidden;
    });
    said.textContent = shown + " of " + body.rows.length + " rows";
  });
});
(function () {
  function reveal() {
    var target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();
  var opened = [];
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details:not([open]):not(.screen)").forEach(function (one) { one.open = true; opened.push(one); });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (one) { one.open = false; });
    opened = [];
  });
})();
