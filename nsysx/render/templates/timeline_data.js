"use strict";
/* What a timeline holds, and the words for it: read once, then asked by the picture, its buttons and the tables. */

/* The data with the boxes of each lane: start, end, color, text, fill (0 to 1); of GPU work also when (call) and in which lane (by) it was
   launched, and its module and line. */
function timeline_of(source) {
  var data = JSON.parse(source);
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
  return data;
}
/* The GPU work that a call launched, and the call that launched some. */
function launched(data, call) {
  var found = [];
  data.lanes.forEach(function (lane) {
    lane.boxes.forEach(function (one) { if (one.by === call.lane && one.call >= call.start && one.call < call.end) found.push(one); });
  });
  return found;
}
function launch_of(data, one) {
  return one.call === undefined ? undefined : data.lanes[one.by].boxes.filter(function (call) { return call.start <= one.call && one.call < call.end; })[0];
}
function duration(ns) {
  var size = Math.abs(ns);
  if (size < 1e3) return Math.round(ns) + " ns";
  if (size < 1e6) return (ns / 1e3).toFixed(size < 1e5 ? 1 : 0) + " \u00b5s";
  return size < 1e9 ? (ns / 1e6).toFixed(size < 1e8 ? 2 : 1) + " ms" : (ns / 1e9).toFixed(2) + " s";
}
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
