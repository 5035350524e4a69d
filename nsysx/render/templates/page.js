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
    if (at.classList.contains("rest")) at.parentElement.dispatchEvent(new Event("unfold"));
  }
}
/* The list of what to do shows as many lines as fit the first screen, two at least; it is called when all above is drawn. */
function fit(list) {
  var items = list.querySelectorAll(":scope > .item"), last = items.length - 1, limit = 1.07 * window.innerHeight, top = window.scrollY;
  if (last < 2 || window.matchMedia("print").matches || items[last].getBoundingClientRect().bottom + top <= limit) return;
  for (var n = last; n > 1 && (n === last || items[n].getBoundingClientRect().bottom + top > limit - 40); n--) items[n].classList.add("rest");
  foldable(list, last - n, "", function (more) { list.append(more); });
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
/* A timeline that can be looked at closely, drawn beside the still picture when a reader asks for it. */
document.querySelectorAll("figure[data-live]").forEach(function (figure) {
  var source = figure.getAttribute("data-live");
  if (!source) return;
  var box = document.createElement("div"), open = document.createElement("button"), data = null, canvas, said, sum, from, to;
  var picked = null, sought = "", last = -1, AXIS = 22, FLAG = 18, row = 21, first = figure.hasAttribute("data-first"), flags = 0;
  box.className = "live";
  figure.appendChild(box);
  function add(name, act) {
    var button = name === "Look closer" ? open : document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", act);
    box.appendChild(button);
  }
  function duration(ns) {
    var size = Math.abs(ns);
    if (size < 1e3) return Math.round(ns) + " ns";
    if (size < 1e6) return (ns / 1e3).toFixed(size < 1e5 ? 1 : 0) + " \u00b5s";
    return size < 1e9 ? (ns / 1e6).toFixed(2) + " ms" : (ns / 1e9).toFixed(2) + " s";
  }
  function names() { return Math.min(190, 0.28 * canvas.clientWidth); }
  function read() {
    data = JSON.parse(source);
    data.lanes.forEach(function (lane) {
      lane.boxes = [];
      for (var i = 0, at = 0; i < lane.at.length; i += 4) {
        var start = at + lane.at[i], fill = lane.fill[i / 4];
        at = start + lane.at[i + 1];
        lane.boxes.push({ start: start, end: at, color: data.color[lane.at[i + 2]], text: data.text[lane.at[i + 3]],
          fill: fill === undefined ? 1 : fill / 100 });
      }
    });
    flags = data.marks.length || first ? FLAG : 0;
    row = Math.max(12, Math.min(21, 174 / data.lanes.length));  /* with many ranks the lanes get lower, not the list below */
    from = 0;
    to = data.ns;
  }
  function light(color) {
    var c = [1, 3, 5].map(function (i) { return parseInt(color.slice(i, i + 2), 16); });
    return 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
  }
  function dark(color) { return light(color) < 120; }
  function pale(color) { return light(color) > 190; }  /* it would glare on a dark page */
  function draw() {
    var wide = canvas.clientWidth, high = Math.round(flags + row * data.lanes.length + AXIS), sharp = window.devicePixelRatio || 1;
    if (!wide) return;
    canvas.width = wide * sharp;
    canvas.height = high * sharp;
    canvas.style.height = high + "px";
    var g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), left = names(), scale = (wide - left) / (to - from);
    var ink = style.getPropertyValue("--fg"), soft = style.getPropertyValue("--soft"), night = window.matchMedia("(prefers-color-scheme: dark)").matches;
    g.setTransform(sharp, 0, 0, sharp, 0, 0);
    g.clearRect(0, 0, wide, high);
    g.textBaseline = "middle";
    data.lanes.forEach(function (lane, n) {
      var gap = row < 15 ? 1 : 2, top = flags + n * row + gap, tall = row - 2 * gap;
      g.font = Math.min(12, row - 3) + "px system-ui, sans-serif";
      g.fillStyle = style.getPropertyValue("--card");
      g.fillRect(left, top, wide - left, tall);
      g.fillStyle = ink;
      g.save();
      g.beginPath();
      g.rect(0, top, left - 6, tall);
      g.clip();
      g.fillText(lane.name, 0, top + tall / 2, left - 8);  /* a name without room gets narrower: its end tells streams apart */
      g.restore();
      g.save();
      g.beginPath();
      g.rect(left, top, wide - left, tall);
      g.clip();
      lane.boxes.forEach(function (one) {
        if (one.end < from || one.start > to) return;
        var x = left + (one.start - from) * scale, w = (one.end - one.start) * scale, h = tall * one.fill;
        g.globalAlpha = Math.min(1, Math.max(w, 0.1));  /* what is narrower than a pixel is paler, not wider */
        if (sought && !fits(one)) g.globalAlpha *= 0.15;
        if (night && pale(one.color)) g.globalAlpha *= lane.idle ? 0.4 : 0.75;
        g.fillStyle = one.color;
        g.fillRect(x, top + tall - h, Math.max(w - (w > 4 ? 0.5 : 0), 1), h);
        if (lane.idle && w > 5) {
          g.save();
          g.beginPath();
          g.rect(x, top, w, tall);
          g.clip();
          g.strokeStyle = style.getPropertyValue("--bg");
          g.lineWidth = 2.5;
          g.beginPath();
          for (var d = Math.max(x, left) - tall - (Math.max(x, left) % 8); d < Math.min(x + w, wide); d += 8) { g.moveTo(d, top + tall); g.lineTo(d + tall, top); }
          g.stroke();
          g.restore();
        }
        g.globalAlpha = 1;
        if (w > 36 && one.fill === 1 && !lane.idle) {
          var shown = Math.max(x, left), room = Math.min(x + w, wide) - shown - 8, text = one.text;
          if (g.measureText(text).width > room) text = text.slice(0, Math.max(0, Math.floor(room / 7) - 1)) + "\u2026";
          g.fillStyle = dark(one.color) ? "#fff" : "#000";
          if (room > 24) g.fillText(text, shown + 4, top + tall / 2);
        }
      });
      g.restore();
    });
    if (picked) {
      var edges = picked.map(function (t) { return Math.min(wide, Math.max(left, left + (t - from) * scale)); });
      g.globalAlpha = 0.18;
      g.fillStyle = style.getPropertyValue("--accent");
      g.fillRect(edges[0], flags, edges[1] - edges[0], high - AXIS - flags);
      g.globalAlpha = 1;
    }
    var seen = data.marks.filter(function (mark) { return left + (mark[2] - from) * scale >= left && left + (mark[1] - from) * scale <= wide; });
    /* The flags stand side by side: pushed to the right from the first on, then back from the edge. */
    var taken = seen.map(function (mark) {
      var a = Math.max(left + (mark[1] - from) * scale, left), b = Math.min(Math.max(left + (mark[2] - from) * scale, a + 2), wide);
      return { mark: mark, a: a, b: b, at: Math.max((a + b) / 2, left + 8) };
    }).sort(function (one, other) { return one.at - other.at; });
    for (var n = 1; n < taken.length; n++) taken[n].at = Math.max(taken[n].at, taken[n - 1].at + 15);
    for (var m = taken.length - 1, edge = wide - 8; m >= 0; m--, edge -= 15) taken[m].at = edge = Math.min(taken[m].at, edge);
    taken.forEach(function (flag) {
      g.fillStyle = style.getPropertyValue("--accent");
      g.fillRect(flag.a, FLAG - 4, flag.b - flag.a, 3);
      g.fillRect(flag.a, FLAG - 4, 1, high - AXIS - FLAG + 4);
      flag.mark[3] = flag.at;
      g.beginPath();
      g.arc(flag.at, 8, 7, 0, 7);
      g.fill();
      g.fillStyle = style.getPropertyValue("--bg");
      g.font = "bold 11px system-ui, sans-serif";
      g.textAlign = "center";
      g.fillText(String(flag.mark[0]), flag.at, 8.5);
      g.textAlign = "left";
    });
    taken = taken.map(function (flag) { return flag.at; });
    data.lines.forEach(function (line) {
      var x = left + (line[0] - from) * scale;
      if (x < left + 1 || x > wide) return;
      g.strokeStyle = ink;
      g.lineWidth = 1;
      g.setLineDash([4, 3]);
      g.beginPath();
      g.moveTo(x + 0.5, flags);
      g.lineTo(x + 0.5, high - AXIS);
      g.stroke();
      g.setLineDash([]);
      g.font = "11px system-ui, sans-serif";
      var over = wide - x < g.measureText(line[1]).width + 4;
      g.fillStyle = soft;
      g.textAlign = over ? "right" : "left";
      if (!taken.some(function (at) { return over ? at < x + 8 && at > x - 120 : at > x - 8 && at < x + 120; })) g.fillText(line[1], over ? x - 3 : x + 3, 8.5);
      g.textAlign = "left";
    });
    canvas.setAttribute("data-from", Math.round(from));
    canvas.setAttribute("data-to", Math.round(to));
    g.fillStyle = soft;
    g.font = "11px system-ui, sans-serif";
    var step = Math.pow(10, Math.floor(Math.log10((to - from) / 4)));
    var most = Math.max(2, Math.min(8, (wide - left) / 72));
    while ((to - from) / step > most) step *= (to - from) / step > 2 * most ? 5 : 2;
    for (var t = Math.ceil(from / step) * step; t <= to; t += step) {
      var x = left + (t - from) * scale;
      g.fillRect(x, flags, 0.5, high - AXIS + 4 - flags);
      if (x + 2 + g.measureText(duration(t)).width <= wide) g.fillText(duration(t), x + 2, high - AXIS / 2 + 2);
    }
  }
  function look(a, b) {
    var length = Math.min(data.ns, Math.max(b - a, Math.min(200, data.ns)));
    from = Math.min(Math.max(0, a), data.ns - length);
    to = from + length;
    draw();
  }
  function zoom(by, at) {
    var middle = at === undefined ? (from + to) / 2 : at;
    look(middle - (middle - from) * by, middle + (to - middle) * by);
  }
  function time(event) {
    var edge = canvas.getBoundingClientRect(), left = names();
    return from + (event.clientX - edge.left - left) / (edge.width - left) * (to - from);
  }
  function tell(event) {
    var found = sought ? null : box_at(event);
    if (sought) return;
    said.textContent = found ? found.text + ": " + duration(found.end - found.start) + (found.fill < 1 ? ", " + Math.round(100 * found.fill) + " % of it filled" : "") + ", begins at " + duration(found.start) : "";
  }
  function fits(one) { return one.text.toLowerCase().indexOf(sought) >= 0; }
  /* The sums of a span, lane by lane: idle time by cause, else how long it is busy, with what takes longest. */
  function sums(a, b) {
    var list = document.createElement("ul");
    sum.textContent = duration(b - a) + " from " + duration(a) + " on:";
    data.lanes.forEach(function (lane) {
      var of = {}, whole = 0, count = 0, merged = false;
      lane.boxes.forEach(function (one) {
        var ns = (Math.min(b, one.end) - Math.max(a, one.start)) * one.fill;
        if (ns <= 0) return;
        of[one.text] = (of[one.text] || 0) + ns;
        whole += ns;
        count++;
        merged = merged || one.fill < 1;
      });
      if (!whole) return;
      var names = Object.keys(of).sort(function (one, other) { return of[other] - of[one]; });
      var item = document.createElement("li"), head = document.createElement("strong");
      head.textContent = lane.name + ": ";
      item.append(head, duration(whole) + " (" + Math.round(100 * whole / (b - a)) + " %" + (lane.idle ? "" : ", " + (merged ? "at least " : "") + count + " " + (count === 1 ? "entry" : "entries")) + "): " +
        names.slice(0, 3).map(function (name) { return name + " " + duration(of[name]); }).join(", ") + (names.length > 3 ? ", " + (names.length - 3) + " more" : ""));
      list.append(item);
    });
    sum.append(list);
  }
  function find(next) {
    var found = [], whole = 0;
    data.lanes.forEach(function (lane) { lane.boxes.forEach(function (one) { if (sought && fits(one)) { found.push(one); whole += (one.end - one.start) * one.fill; } }); });
    if (next && found.length) {
      last = (last + 1) % found.length;
      var room = Math.max(2 * (found[last].end - found[last].start), data.ns / 100);
      look(found[last].start - room, found[last].end + room);
    } else draw();
    said.textContent = !sought ? "" : found.length ? found.length + " found, " + duration(whole) + (next ? "; number " + (last + 1) + ": " + found[last].text + ", " + duration(found[last].end - found[last].start) + ", begins at " + duration(found[last].start) : ", Enter leads to each") : "Nothing here is named so";
  }
  /* What was clicked: all of its name stand out, and its row of the table of kernels is one click away. */
  function choose(one) {
    seek.value = one.text;
    sought = one.text.toLowerCase();
    last = -1;
    find(false);
    var rows = Array.prototype.filter.call(document.querySelectorAll("#kernels tbody tr"), function (tr) {
      var cell = tr.cells[0], name = cell.title || cell.textContent, key = one.text.replace(/\u2026.*$/, "");
      return key.length > 2 && (cell.textContent === one.text || name.indexOf(key) >= 0);
    });
    if (!rows.length) return;
    var link = document.createElement("button");
    link.type = "button";
    link.className = "rows torow";
    link.textContent = "Its row in Kernels";
    link.addEventListener("click", function () { expose(rows[0]); rows[0].scrollIntoView({ block: "center" }); rows[0].classList.add("here"); });
    said.append(" ", link);
  }
  function box_at(event) {
    var lane = data.lanes[Math.floor((event.clientY - canvas.getBoundingClientRect().top - flags) / row)], at = time(event), near = (to - from) / canvas.clientWidth, hit = null;
    if (lane && at >= from) lane.boxes.forEach(function (one) { if (one.start - near <= at && at <= one.end + near) hit = one; });
    return hit;
  }
  function show(mark) {
    var room = Math.max(mark[2] - mark[1], data.ns / 200);
    look(mark[1] - room, mark[2] + room);
    said.textContent = mark[0] + ": begins at " + duration(mark[1]) + ", " + duration(mark[2] - mark[1]);
  }
  add("Look closer", function () {
    if (data) { [canvas, said, sum].forEach(function (one) { box.removeChild(one); }); data = null; open.textContent = "Look closer"; more.forEach(function (b) { b.hidden = true; }); still.classList.remove("replaced"); return; }
    read();
    open.textContent = "Close";
    canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "The timeline: plus and minus zoom, arrow keys move, s sums what is shown, a slash finds names, digits lead to what is marked, Home shows the whole window. Its figures are in the tables.");
    said = document.createElement("output");
    sum = document.createElement("div");
    sum.className = "sums";
    sum.setAttribute("role", "status");
    more.forEach(function (b) { b.hidden = false; });
    box.append(canvas, said, sum);
    var held = null, moved = false;
    canvas.addEventListener("wheel", function (event) {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;  /* after a click, or with Ctrl */
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
    }, { passive: false });
    canvas.addEventListener("click", function (event) {
      if (event.clientY - canvas.getBoundingClientRect().top > flags) {
        var one = moved ? null : box_at(event);
        if (one) choose(one);
        return;
      }
      var at = event.clientX - canvas.getBoundingClientRect().left;
      data.marks.forEach(function (one) { if (Math.abs(one[3] - at) < 8) { show(one); expose(document.getElementById("do-" + one[0])); } });
    });
    canvas.addEventListener("pointerdown", function (event) { held = [event.clientX, from, to, event.shiftKey ? time(event) : null]; moved = false; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", function () {
      if (held && held[3] !== null && picked) sums(picked[0], picked[1]);
      held = null;
    });
    canvas.addEventListener("pointermove", function (event) {
      if (!held) return tell(event);
      moved = moved || Math.abs(event.clientX - held[0]) > 3;
      if (held[3] !== null) {
        picked = [held[3], time(event)].sort(function (a, b) { return a - b; });
        return draw();
      }
      var by = (held[0] - event.clientX) / (canvas.clientWidth - names()) * (held[2] - held[1]);
      look(held[1] + by, held[2] + by);
    });
    canvas.addEventListener("dblclick", function (event) { zoom(0.4, time(event)); });
    canvas.addEventListener("keydown", function (event) {
      var part = (to - from) / 5, keys = { "+": 0.5, "=": 0.5, "-": 2 };
      var mark = data.marks.filter(function (one) { return String(one[0]) === event.key; })[0];
      if (mark) show(mark);
      else if (event.key === "Home" || event.key === "0") look(0, data.ns);
      else if (event.key === "s") sums(from, to);
      else if (event.key === "/") seek.focus();
      else if (event.key === "Escape") { picked = null; seek.value = sought = said.textContent = sum.textContent = ""; draw(); canvas.blur(); }
      else if (keys[event.key]) zoom(keys[event.key]);
      else if (event.key === "ArrowLeft") look(from - part, to - part);
      else if (event.key === "ArrowRight") look(from + part, to + part);
      else return;
      event.preventDefault();
    });
    draw();
  });
  var before = box.children.length;
  add("Zoom in", function () { zoom(0.5); });
  add("Zoom out", function () { zoom(2); });
  add("Whole window", function () { look(0, data.ns); });
  add("Sums", function () { if (picked) sums(picked[0], picked[1]); else sums(from, to); });
  var seek = document.createElement("input");
  seek.type = "search";
  seek.placeholder = "Find";
  seek.setAttribute("aria-label", "Find by name in the timeline");
  seek.addEventListener("input", function () { sought = seek.value.toLowerCase(); last = -1; find(false); });
  seek.addEventListener("keydown", function (event) { if (event.key === "Enter") find(true); });
  box.append(seek);
  var more = Array.prototype.slice.call(box.children, before);
  more.forEach(function (b) { b.hidden = true; });
  if (first) {
    open.click();
    open.hidden = true;
    figure.querySelector(".scroll").classList.add("drawn");
    document.querySelectorAll("button.goto").forEach(function (button) {
      var mark = data.marks.filter(function (one) { return String(one[0]) === button.getAttribute("data-mark"); })[0];
      if (!mark) return;
      button.hidden = false;
      button.addEventListener("click", function () {
        show(mark);
        canvas.focus();
        figure.scrollIntoView({ block: "nearest" });
      });
    });
  }
  /* A phone shows a third of the still picture: there the whole window is drawn at once, as wide as the screen. */
  var still = figure.querySelector(".scroll"), group = figure.closest("details");
  function narrow() {
    if (data || !group.open || !window.matchMedia("screen and (max-width:720px)").matches) return;
    open.click();
    still.classList.add("replaced");
    group.removeEventListener("toggle", narrow);
  }
  if (group && !first) { group.addEventListener("toggle", narrow); narrow(); }
  window.addEventListener("resize", function () { if (data) draw(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { if (data) draw(); });
});
document.querySelectorAll(".todo").forEach(fit);
