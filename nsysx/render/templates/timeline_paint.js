"use strict";
/* The live timeline as a picture on a canvas. */
var AXIS_TALL = 22, FLAG_TALL = 18, STRIP_TALL = 26;  /* of the axis, of the flags of what is marked, of a queue (CSS pixels) */
var LEAST_LETTERS = 4;  /* a label with fewer letters left tells nothing */
/* How much room the names of the lanes take on the left. */
function names_wide(canvas) { return Math.min(190, 0.28 * canvas.clientWidth); }
function light(color) {
  var c = [1, 3, 5].map(function (i) { return parseInt(color.slice(i, i + 2), 16); });
  return 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
}
function dark(color) { return light(color) < 120; }
function pale(color) { return light(color) > 190; }  /* it would glare on a dark page */
/* What differs between neighbors stands in the end of a path, and behind the first bracket of a kernel's name. */
function telling(text, letters) {
  if (/^[\w.\/*()-]+(:\d+)?$/.test(text) && /[.\/]/.test(text)) return "\u2026" + text.slice(Math.max(0, text.length - letters)).replace(/^[.\/]+/, "");
  var inner = text.replace(/^\w*kernel\w*<(?:\d+, )*(?:void )?(?!(?:float|double|u?int\w*|long|short|char|bool|unsigned|signed|half|c10::\w+)\b)(?=[A-Za-z])/, "");
  return inner.replace(/^(?:\w+::|\(anonymous namespace\)::)+(?=\w)/, "").slice(0, letters) + "\u2026";
}
/* Draws what is seen of a timeline. ``view`` has its data, the span that is seen (from, to, ns), how tall a lane (row), the flags and the queues
   (strips) are, the span that is picked, the box that is chosen, and whether a box fits what is sought (fits, null where nothing is). Each flag
   notes where it stands, for a click on it. */
function paint_timeline(canvas, view) {
  var data = view.data, from = view.from, to = view.to, row = view.row, flags = view.flags, picked = view.picked, chosen = view.chosen;
  var wide = canvas.clientWidth, high = Math.round(flags + row * data.lanes.length + view.strips + AXIS_TALL), sharp = window.devicePixelRatio || 1;
  if (!wide) return;
  canvas.width = wide * sharp;
  canvas.height = high * sharp;
  canvas.style.height = high + "px";
  var g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), left = names_wide(canvas), scale = (wide - left) / (to - from);
  var ink = style.getPropertyValue("--fg"), soft = style.getPropertyValue("--soft"), night = window.matchMedia("(prefers-color-scheme: dark)").matches;
  g.setTransform(sharp, 0, 0, sharp, 0, 0);
  g.clearRect(0, 0, wide, high);
  g.textBaseline = "middle";
  lanes();
  arrows();
  queues();
  if (picked) span();
  lines(marks());
  canvas.setAttribute("data-from", Math.round(from));
  canvas.setAttribute("data-to", Math.round(to));
  axis();
  function lanes() {
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
        if (view.fits && !view.fits(one)) g.globalAlpha *= 0.15;
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
        if (w > 36 && one.fill === 1 && !lane.idle && one.text !== "several") {  /* neighbors of several names */
          var shown = Math.max(x, left), room = Math.min(x + w, wide) - shown - 8, text = one.text;
          for (var letters = Math.floor(room / 4); letters >= LEAST_LETTERS && g.measureText(text).width > room; letters--) text = telling(one.text, letters);
          g.fillStyle = dark(one.color) ? "#fff" : "#000";
          if (g.measureText(text).width <= room) g.fillText(text, shown + 4, top + tall / 2);
        }
      });
      g.restore();
    });
  }
  /* Arrows from a launch to the start of its work: of what is chosen, else of the longest that are seen. */
  function arrows() {
    var seen = [];
    data.lanes.forEach(function (lane) {
      lane.boxes.forEach(function (one) { if (one.call !== undefined && one.end > from && one.start < to && one.call >= from && one.call <= to) seen.push(one); });
    });
    seen.sort(function (one, other) { return (other.end - other.start) - (one.end - one.start); });
    var drawn = seen.slice(0, 8);
    if (chosen) drawn = chosen.call !== undefined ? [chosen] : launched(data, chosen).slice(0, 40);
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
  /* How much waits in the queue of each device. */
  function queues() {
    data.queues.forEach(function (queue, n) {
      var top = flags + row * data.lanes.length + n * STRIP_TALL + 4, most = Math.max.apply(null, queue.ns), tall = STRIP_TALL - 8;
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
  }
  /* The span that is picked. */
  function span() {
    var edges = picked.map(function (t) { return Math.min(wide, Math.max(left, left + (t - from) * scale)); });
    g.globalAlpha = 0.18;
    g.fillStyle = style.getPropertyValue("--accent");
    g.fillRect(edges[0], flags, edges[1] - edges[0], high - AXIS_TALL - flags);
    g.globalAlpha = 1;
  }
  /* The flags of what is marked; returns where they stand. */
  function marks() {
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
      g.fillRect(flag.a, FLAG_TALL - 4, flag.b - flag.a, 3);
      g.fillRect(flag.a, FLAG_TALL - 4, 1, high - AXIS_TALL - FLAG_TALL + 4);
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
    return taken.map(function (flag) { return flag.at; });
  }
  /* Dashed lines with their names, where no flag stands. */
  function lines(taken) {
    data.lines.forEach(function (line) {
      var x = left + (line[0] - from) * scale;
      if (x < left + 1 || x > wide) return;
      g.strokeStyle = ink;
      g.lineWidth = 1;
      g.setLineDash([4, 3]);
      g.beginPath();
      g.moveTo(x + 0.5, flags);
      g.lineTo(x + 0.5, high - AXIS_TALL);
      g.stroke();
      g.setLineDash([]);
      g.font = "11px system-ui, sans-serif";
      var over = wide - x < g.measureText(line[1]).width + 4;
      g.fillStyle = soft;
      g.textAlign = over ? "right" : "left";
      if (!taken.some(function (at) { return over ? at < x + 8 && at > x - 120 : at > x - 8 && at < x + 120; })) g.fillText(line[1], over ? x - 3 : x + 3, 8.5);
      g.textAlign = "left";
    });
  }
  function axis() {
    g.fillStyle = soft;
    g.font = "11px system-ui, sans-serif";
    var step = Math.pow(10, Math.floor(Math.log10((to - from) / 4)));
    var most = Math.max(2, Math.min(8, (wide - left) / 72));
    while ((to - from) / step > most) step *= (to - from) / step > 2 * most ? 5 : 2;
    for (var t = Math.ceil((from - data.shown[0]) / step) * step; t <= to - data.shown[0]; t += step) {
      var x = left + (t + data.shown[0] - from) * scale;
      g.fillRect(x, flags, 0.5, high - AXIS_TALL + 4 - flags);
      var words = tick(t, step);
      if (x + 2 + g.measureText(words).width <= wide) g.fillText(words, x + 2, high - AXIS_TALL / 2 + 2);
    }
  }
  /* An instant on the axis, in the unit of the longest, with as many digits as tell it from the next one, ``step`` ns later. */
  function tick(ns, step) {
    var unit = to < 1e3 ? [1, "ns"] : to < 1e6 ? [1e3, "\u00b5s"] : to < 1e9 ? [1e6, "ms"] : [1e9, "s"];
    return (ns / unit[0]).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9))) + " " + unit[1];
  }
}
