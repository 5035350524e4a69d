"use strict";
/* Only comfort: sorting, a filter box, and opened details on paper. The page says everything without it. */
/* What is beyond the first few of a table or list (class "rest") opens with a button behind it. */
function foldable(box, count, what, place) {
  var more = document.createElement("button");
  function fold(yes) {
    box.classList.toggle("folded", yes);
    more.textContent = yes ? count + " more" + what : "Less";
    more.setAttribute("aria-expanded", String(!yes));
  }
  more.type = "button";
  more.className = "rows";
  more.addEventListener("click", function () { fold(!box.classList.contains("folded")); });
  place(more);
  box.addEventListener("unfold", function () { fold(false); });
  fold(true);
  return fold;
}
/* Opens all that an element is hidden in. */
function expose(target) {
  for (var at = target; at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
    if (at.classList.contains("rest")) (at.tagName === "TR" ? at.closest("table") : at.parentElement).dispatchEvent(new Event("unfold"));
  }
}
/* The list of what to do shows as many lines as fit the first screen, two at least; it is called when all above is drawn. */
function fit(list) {
  var items = list.querySelectorAll(":scope > .item"), most = Number(list.getAttribute("data-fit")), shown = Math.min(most, items.length);
  var limit = 1.07 * window.innerHeight - window.scrollY;
  function bottom(n) { return items[n - 1].getBoundingClientRect().bottom; }
  if (window.matchMedia("print").matches || (items.length <= most && bottom(shown) <= limit)) return;
  while (shown > 2 && bottom(shown) > limit - 40) shown--;
  if (shown === items.length) return;
  for (var n = shown; n < items.length; n++) items[n].classList.add("rest");
  foldable(list, items.length - shown, "", function (more) { list.append(more); });
}
document.querySelectorAll("[data-most]").forEach(function (box) {
  var count = Array.prototype.filter.call(box.children, function (one) { return one.classList.contains("rest"); }).length;
  if (count) foldable(box, count, "", function (more) { if (box.tagName === "DL" || box.tagName === "UL") box.after(more); else box.append(more); });
});
document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0], heads = table.tHead.rows[0].cells, rest = body.querySelectorAll(".rest").length;
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
      rows.forEach(function (entry, place) {
        entry[0].classList.toggle("rest", place >= body.rows.length - rest);
        body.appendChild(entry[0]);
      });
    });
  });
  if (!rest) return;
  var fold = foldable(table, rest, " row" + (rest > 1 ? "s" : ""), function (more) { table.parentNode.after(more); });
  if (body.rows.length <= 10) return;
  var box = document.createElement("input"), wrap = document.createElement("label"), said = document.createElement("span");
  box.type = "search";
  said.className = "sr";
  said.setAttribute("role", "status");
  wrap.className = "filter";
  wrap.append("Filter ", box, said);
  table.parentNode.parentNode.insertBefore(wrap, table.parentNode);
  box.addEventListener("input", function () {
    var words = box.value.toLowerCase().split(/\s+/), shown = 0;
    fold(!box.value);
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
    if (target) { expose(target); target.scrollIntoView(); }
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
/* The line of a finding leads to its row in the table of lines; without a script to the table. */
document.querySelectorAll("a.toline").forEach(function (link) {
  link.addEventListener("click", function (event) {
    var row = Array.prototype.filter.call(document.querySelectorAll("#lines tbody tr"), function (tr) {
      return ((tr.cells[0].title || tr.cells[0].textContent) + " ").indexOf(link.textContent + " ") === 0;
    })[0];
    if (!row) return;
    event.preventDefault();
    expose(row);
    row.scrollIntoView({ block: "center" });
    row.classList.add("here");
  });
});
/* Buttons that copy lines to paste, or the answer for a ticket. A page opened from a disk may not be allowed the newer way. */
document.querySelectorAll("button.copy").forEach(function (button) {
  var name = button.textContent, of = button.getAttribute("data-copy-of"), text = of ? document.getElementById(of).value : button.getAttribute("data-copy");
  function done(yes) {
    button.textContent = yes ? "Copied" : "Not allowed here: select it";
    setTimeout(function () { button.textContent = name; }, 2000);
  }
  function older() {
    var box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    done(document.execCommand("copy"));
    box.remove();
    button.focus();
  }
  button.hidden = false;
  button.addEventListener("click", function () {
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(function () { done(true); }, older);
    else older();
  });
});
document.querySelectorAll(".todo").forEach(fit);
