"use strict";
/* A timeline that can be looked at closely, drawn beside the still picture when a reader asks for it. */
document.querySelectorAll("figure[data-live]").forEach(function (figure) {
  var source = figure.getAttribute("data-live");
  if (!source) return;
  var box = document.createElement("div"), open = document.createElement("button"), data = null, canvas, said, sum, from, to;
  var picked = null, chosen = null, sought = "", pattern = null, last = -1, AXIS = 22, FLAG = 18, STRIP = 26, row = 21, strips = 0, first = figure.hasAttribute("data-first"), flags = 0;
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
  /* An instant on the axis, in the unit of the longest, with as many digits as tell it from the next one, ``step`` ns later. */
  function tick(ns, step) {
    var unit = to < 1e3 ? [1, "ns"] : to < 1e6 ? [1e3, "\u00b5s"] : to < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    return (ns / unit[0]).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9))) + " " + unit[1];
  }
  /* Times count from what is shown at first: the start of the step. */
  function when(ns) { return duration(ns - data.shown[0]); }
  function names() { return Math.min(190, 0.28 * canvas.clientWidth); }
  function read() {
    data = JSON.parse(source);
    data.lanes.forEach(function (lane, n) {
      lane.boxes = [];
      for (var i = 0, at = 0; i < lane.at.length; i += 4) {
        var start = at + lane.at[i], fill = lane.fill[i / 4];
        at = start + lane.at[i + 1];
        var one = { start: start, end: at, color: data.color[lane.at[i + 2]], text: data.text[lane.at[i + 3]],
          fill: fill === undefined ? 1 : fill / 100, lane: n };
        if (lane.of) {
          if (lane.of[i] >= 0) { one.call = start - lane.of[i]; one.by = lane.of[i + 1]; }
          one.module = data.text[lane.of[i + 2]];
          one.line = data.text[lane.of[i + 3]];
        }
        lane.boxes.push(one);
      }
    });
    flags = data.marks.length || first ? FLAG : 0;
    var narrow = figure.clientWidth < 500;  /* on a phone the queue is in the still picture alone */
    if (narrow) data.queues = [];
    strips = STRIP * data.queues.length;
    row = Math.max(12, Math.min(21, ((narrow ? 106 : 174) - strips) / data.lanes.length));  /* with many lanes they get lower, not the list below */
    from = data.shown[0];
    to = data.shown[1];
  }
  function light(color) {
    var c = [1, 3, 5].map(function (i) { return parseInt(color.slice(i, i + 2), 16); });
    return 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
  }
  function dark(color) { return light(color) < 120; }
  function pale(color) { return light(color) > 190; }  /* it would glare on a dark page */
  /* What differs between neighbors stands in the end of a path, and behind the first bracket of a kernel's name. */
  function telling(text, letters) {
    if (/^[\w.\/*()-]+(:\d+)?$/.test(text) && /[.\/]/.test(text)) return "\u2026" + text.slice(Math.max(0, text.length - letters));
    var inner = text.replace(/^\w*kernel\w*<(?:\d+, )*(?:void )?(?=[A-Za-z])/, "");
    return inner.slice(0, letters) + "\u2026";
  }
  function draw() {
    var wide = canvas.clientWidth, high = Math.round(flags + row * data.lanes.length + strips + AXIS), sharp = window.devicePixelRatio || 1;
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
          if (g.measureText(text).width > room) text = telling(text, Math.max(0, Math.floor(room / 6.5) - 1));
          g.fillStyle = dark(one.color) ? "#fff" : "#000";
          if (room > 24) g.fillText(text, shown + 4, top + tall / 2);
        }
      });
      g.restore();
    });
    arrows(g, left, wide, scale, ink);
    data.queues.forEach(function (queue, n) {
      var top = flags + row * data.lanes.length + n * STRIP + 4, most = Math.max.apply(null, queue.ns), tall = STRIP - 8;
      g.fillStyle = ink;
      g.font = "11px system-ui, sans-serif";
      g.fillText(queue.name, 0, top + tall / 2, left - 8);
      g.save();
      g.beginPath();
      g.rect(left, top, wide - left, tall);
      g.clip();
      g.beginPath();
      g.moveTo(left, top + tall);
      queue.ns.forEach(function (ns, i) { g.lineTo(left + (data.ns * i / (queue.ns.length - 1) - from) * scale, top + tall * (1 - ns / (most || 1))); });
      g.lineTo(left + (data.ns - from) * scale, top + tall);
      g.globalAlpha = 0.55;
      g.fillStyle = "#56B4E9";
      g.fill();
      g.restore();
      g.fillStyle = soft;
      g.textAlign = "right";
      g.fillText("at most " + duration(most), wide - 4, top + 6);
      g.textAlign = "left";
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
    for (var t = Math.ceil((from - data.shown[0]) / step) * step; t <= to - data.shown[0]; t += step) {
      var x = left + (t + data.shown[0] - from) * scale;
      g.fillRect(x, flags, 0.5, high - AXIS + 4 - flags);
      var words = tick(t, step);
      if (x + 2 + g.measureText(words).width <= wide) g.fillText(words, x + 2, high - AXIS / 2 + 2);
    }
  }
  /* Arrows from a launch to the start of its work: of what is chosen, else of the longest that are seen. */
  function arrows(g, left, wide, scale, ink) {
    var seen = [];
    data.lanes.forEach(function (lane) {
      lane.boxes.forEach(function (one) { if (one.call !== undefined && one.end > from && one.start < to && one.call >= from && one.call <= to) seen.push(one); });
    });
    seen.sort(function (one, other) { return (other.end - other.start) - (one.end - one.start); });
    var drawn = seen.slice(0, 8);
    if (chosen) drawn = chosen.call !== undefined ? [chosen] : launched(chosen).slice(0, 40);
    g.save();
    g.beginPath();
    g.rect(left, 0, wide - left, flags + row * data.lanes.length);
    g.clip();
    g.strokeStyle = g.fillStyle = ink;
    g.globalAlpha = chosen ? 0.9 : 0.35;
    g.lineWidth = chosen ? 1.5 : 1;
    drawn.forEach(function (one) {
      var x = left + (one.call - from) * scale, y = flags + row * (one.by + 1) - 2, u = left + (one.start - from) * scale, v = flags + row * one.lane + 2;
      if (one.by > one.lane) { y -= row - 4; v += row - 4; }
      g.beginPath();
      g.moveTo(x, y);
      g.lineTo(u, v);
      g.stroke();
      g.beginPath();
      g.arc(u, v, 2, 0, 7);
      g.fill();
    });
    g.globalAlpha = 1;
    if (chosen) {
      g.lineWidth = 2;
      g.strokeRect(left + (chosen.start - from) * scale - 1, flags + row * chosen.lane + 1, Math.max(3, (chosen.end - chosen.start) * scale + 2), row - 2);
    }
    g.restore();
  }
  /* The GPU work that a call launched, and the call that launched some. */
  function launched(call) {
    var found = [];
    data.lanes.forEach(function (lane) {
      lane.boxes.forEach(function (one) { if (one.by === call.lane && one.call >= call.start && one.call < call.end) found.push(one); });
    });
    return found;
  }
  function launch_of(one) {
    return one.call === undefined ? undefined : data.lanes[one.by].boxes.filter(function (call) { return call.start <= one.call && one.call < call.end; })[0];
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
    var call = launch_of(one), work = call || one.call !== undefined ? [] : launched(one), words = one.text + ": " + duration(one.end - one.start) + ", begins at " + when(one.start);
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
      var by = (held[0] - event.clientX) / (canvas.clientWidth - names()) * (held[2] - held[1]);
      look(held[1] + by, held[2] + by);
    });
    canvas.addEventListener("dblclick", function (event) { zoom(0.4, time(event)); });
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
    draw();
  });
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
/* The names that one of a table with stars for numbers stands for, null for one without: "layer.*.norm (48 modules)". */
function starred(text) {
  var path = text.replace(/ \(.*$/, "");
  return /^[\w.-]*\*[\w.*-]*$/.test(path) ? new RegExp("^" + path.replace(/\./g, "\\.").replace(/\*/g, "\\d+") + "$", "i") : null;
}
/* The name in a cell of a table: a line without its function. */
function name_of(cell) { return (cell.title || cell.textContent).replace(/(:\d+) .*$/, "$1"); }
/* Whether a cell names what the timeline calls so; there names of kernels lack namespaces and what an ellipsis stands for. */
function same(cell, text) {
  if (!text || text.length < 3) return false;
  var name = name_of(cell);
  if (name === text) return true;
  if (starred(name)) return starred(name).test(text);
  if (!/[<(\u2026]|::/.test(name + text)) return false;
  var at = 0;
  name = bare(name);
  return bare(text).split("\u2026").every(function (part) {
    var found = name.indexOf(part, at);
    at = found + part.length;
    return found >= 0;
  });
}
function bare(name) { return name.replace(/(\w+|\(anonymous namespace\)|<unnamed>)::|\((?:unsigned )?(?:int|long|short|char|bool)\)/g, ""); }
