"use strict";
/* A timeline that can be looked at closely, drawn beside the still picture when a reader asks for it. */
document.querySelectorAll("figure[data-live]").forEach(function (figure) {
  var source = figure.getAttribute("data-live");
  if (!source) return;
  var box = document.createElement("div"), open = document.createElement("button"), data = null, canvas, said, sum, from, to;
  var picked = null, chosen = null, sought = "", pattern = null, last = -1, row = 21, strips = 0, first = figure.hasAttribute("data-first"), flags = 0;
  box.className = "live";
  figure.appendChild(box);
  function add(name, act) {
    var button = name === "Look closer" ? open : document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", act);
    box.appendChild(button);
  }
  /* Times count from what is shown at first: the start of the step. */
  function when(ns) { return duration(ns - data.shown[0]); }
  function read() {
    data = timeline_of(source);
    flags = data.marks.length || first ? FLAG_TALL : 0;
    var narrow = figure.clientWidth < 500;  /* on a phone the queue is in the still picture alone */
    if (narrow) data.queues = [];
    strips = STRIP_TALL * data.queues.length;
    row = Math.max(12, Math.min(21, ((narrow ? 106 : 174) - strips) / data.lanes.length));  /* with many lanes they get lower, not the list below */
    from = data.shown[0];
    to = data.shown[1];
  }
  function draw() {
    var view = { data: data, from: from, to: to, row: row, flags: flags, strips: strips, picked: picked, chosen: chosen, fits: sought ? fits : null };
    paint_timeline(canvas, view);
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
    var edge = canvas.getBoundingClientRect(), left = names_wide(canvas);
    return from + (event.clientX - edge.left - left) / (edge.width - left) * (to - from);
  }
  function tell(event) {
    if (sought || chosen) return;
    var found = box_at(event);
    said.textContent = found ? found.text + ": " + duration(found.end - found.start) + (found.fill < 1 ? ", " + Math.round(100 * found.fill) + " % of it filled" : "") + ", begins at " + when(found.start) : "";
  }
  /* A name is found in what has it, and in what belongs to its module or line; a star stands for numbers. */
  function fits(one) {
    return [one.text, one.module, one.line].some(function (text) { return text && (pattern ? pattern.test(text) : text.toLowerCase().indexOf(sought) >= 0); });
  }
  function want(text) {
    sought = text.toLowerCase();
    pattern = starred(text);
    last = -1;
    chosen = null;
  }
  /* The sums of a span, lane by lane: idle time by cause, else how long it is busy, with what takes longest. */
  function sums(a, b) {
    var list = document.createElement("ul");
    sum.textContent = duration(b - a) + " from " + when(a) + " on:";
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
    said.textContent = !sought ? "" : found.length ? found.length + " found, " + duration(whole) + (next ? "; number " + (last + 1) + ": " + found[last].text + ", " + duration(found[last].end - found[last].start) + ", begins at " + when(found[last].start) : ", Enter leads to each") : "Nothing here is named so";
  }
  /* What was clicked: when it ran, its launch, line and module, and the rows of the tables that are about it. All of its name stand out. */
  function choose(one, alone) {
    seek.value = alone ? "" : one.text;
    want(seek.value);
    find(false);
    chosen = one;
    var call = launch_of(data, one), work = call || one.call !== undefined ? [] : launched(data, one), words = one.text + ": " + duration(one.end - one.start) + ", begins at " + when(one.start);
    if (call) words += "; launched at " + when(call.start) + " by " + call.text + ", " + duration(Math.max(0, one.start - call.end)) + " in the queue";
    if (work.length) words += "; launches " + work.length + (work.length === 1 ? " operation" : " operations");
    if (one.module) words += "; module " + one.module;
    if (one.line) words += "; line " + one.line;
    said.textContent = words + (alone ? "" : ". " + said.textContent);
    if (call) link("Its launch", function () { choose(call, true); near(call, one); });
    if (work.length) link("What it launched", function () { choose(work[0]); near(one, work[0]); });
    [["Its row in Kernels", "#kernels", one.text], ["Its module", "#modules", one.module || one.text], ["Its line", "#lines", one.line || one.text]].forEach(function (to) {
      var tr = rows_of(to[1], to[2])[0];
      if (tr) link(to[0], function () { expose(tr); tr.scrollIntoView({ block: "center" }); tr.classList.add("here"); });
    });
    draw();
  }
  function link(words, act) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "rows torow";
    button.textContent = words;
    button.addEventListener("click", act);
    said.append(" ", button);
  }
  /* Shows both, with some room beside them. */
  function near(one, other) {
    var a = Math.min(one.start, other.start), b = Math.max(one.end, other.end), room = Math.max((b - a) / 4, data.ns / 1000);
    look(a - room, b + room);
  }
  function rows_of(table, text) {
    return Array.prototype.filter.call(document.querySelectorAll(table + " tbody tr"), function (tr) { return same(tr.cells[0], text); });
  }
  function box_at(event) {
    var lane = data.lanes[Math.floor((event.clientY - canvas.getBoundingClientRect().top - flags) / row)], at = time(event), near = (to - from) / canvas.clientWidth, hit = null;
    if (lane && at >= from) lane.boxes.forEach(function (one) { if (one.start - near <= at && at <= one.end + near) hit = one; });
    return hit;
  }
  function show(mark) {
    var room = Math.max(mark[2] - mark[1], data.ns / 200);
    look(mark[1] - room, mark[2] + room);
    said.textContent = mark[0] + ": begins at " + when(mark[1]) + ", " + duration(mark[2] - mark[1]);
  }
  function look_closer() {
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
    follow_mouse();
    follow_keys();
    draw();
  }
  function shut() {
    [canvas, said, sum].forEach(function (one) { box.removeChild(one); });
    data = null;
    open.textContent = "Look closer";
    more.forEach(function (b) { b.hidden = true; });
    still.classList.remove("replaced");
  }
  function follow_mouse() {
    var held = null, moved = false;
    canvas.addEventListener("wheel", function (event) {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;  /* after a click, or with Ctrl */
      event.preventDefault();
      /* A notch of a mouse's wheel is one step of zoom; a touchpad sends many small parts of one, and what it sends sideways moves. */
      var notches = function (by) { return Math.max(-1, Math.min(1, by / (event.deltaMode ? 3 : 100))); };
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        var part = notches(event.deltaX) * (to - from) / 10;
        look(from + part, to + part);
      } else zoom(Math.pow(1.25, notches(event.deltaY)), time(event));
    }, { passive: false });
    canvas.addEventListener("click", function (event) {
      if (event.clientY - canvas.getBoundingClientRect().top > flags) {
        var one = moved ? null : box_at(event);
        if (one) choose(one);
        else if (!moved && chosen) { seek.value = said.textContent = ""; want(""); draw(); }
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
      var by = (held[0] - event.clientX) / (canvas.clientWidth - names_wide(canvas)) * (held[2] - held[1]);
      look(held[1] + by, held[2] + by);
    });
    canvas.addEventListener("dblclick", function (event) { zoom(0.4, time(event)); });
  }
  function follow_keys() {
    canvas.addEventListener("keydown", function (event) {
      var part = (to - from) / 5, keys = { "+": 0.5, "=": 0.5, "-": 2 };
      var mark = data.marks.filter(function (one) { return String(one[0]) === event.key; })[0];
      if (mark) show(mark);
      else if (event.key === "Home" || event.key === "0") look(data.shown[0], data.shown[1]);
      else if (event.key === "s") sums(from, to);
      else if (event.key === "/") seek.focus();
      else if (event.key === "Escape") { picked = null; seek.value = said.textContent = sum.textContent = ""; want(""); draw(); canvas.blur(); }
      else if (keys[event.key]) zoom(keys[event.key]);
      else if (event.key === "ArrowLeft") look(from - part, to - part);
      else if (event.key === "ArrowRight") look(from + part, to + part);
      else return;
      event.preventDefault();
    });
  }
  add("Look closer", function () { if (data) shut(); else look_closer(); });
  var before = box.children.length;
  add("Zoom in", function () { zoom(0.5); });
  add("Zoom out", function () { zoom(2); });
  add("Whole window", function () { look(data.shown[0], data.shown[1]); });
  add("Sums", function () { if (picked) sums(picked[0], picked[1]); else sums(from, to); });
  var seek = document.createElement("input");
  seek.type = "search";
  seek.placeholder = "Find";
  seek.setAttribute("aria-label", "Find by name in the timeline");
  seek.addEventListener("input", function () { want(seek.value); find(false); });
  seek.addEventListener("keydown", function (event) { if (event.key === "Enter") find(true); });
  box.append(seek);
  var more = Array.prototype.slice.call(box.children, before);
  more.forEach(function (b) { b.hidden = true; });
  if (first) {
    open.click();
    open.hidden = true;
    figure.querySelector(".scroll").classList.add("drawn");
    leads();
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
  /* Names in tables that the first timeline has, too, lead to where they are in it. */
  function leads() {
    var names = {};
    data.text.forEach(function (text) { names[text] = true; });
    document.querySelectorAll(".item td.m, .item th.m, #modules th.m, #lines th.m, #kernels th.m, #kernels td.m").forEach(function (cell) {
      if (cell.querySelector("button")) return;  /* another timeline of the page has it */
      var text = name_of(cell), found = names[text] ? text : "", star = starred(text);
      if (!found) found = data.text.filter(function (one) { return same(cell, one); })[0];
      if (!found) return;
      var button = document.createElement("button");
      button.type = "button";
      button.className = "seek";
      button.title = "Show it in the timeline";
      while (cell.firstChild) button.append(cell.firstChild);
      cell.append(button);
      button.addEventListener("click", function () {
        seek.value = star ? text.replace(/ \(.*$/, "") : found;
        want(seek.value);
        find(true);
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
