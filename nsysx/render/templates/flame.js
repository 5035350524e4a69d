"use strict";
/* A flame graph whose boxes are buttons: a click makes one as wide as the picture, with all below it; one above leads back. */
document.querySelectorAll("figure[data-flame]").forEach(function (figure) {
  var rows = JSON.parse(figure.getAttribute("data-flame")), box = document.createElement("div"), HIGH = 24, still = figure.querySelector(".scroll");
  if (rows.length < 2) return;
  var whole = rows.reduce(function (most, one) { return Math.max(most, one[2]); }, 0), chosen = null;
  function draw(again) {
    var from = chosen ? chosen[1] : 0, to = chosen ? chosen[2] : whole, deepest = 0;
    box.textContent = "";
    rows.forEach(function (one) {
      var a = Math.max(from, one[1]), b = Math.min(to, one[2]), share = (b - a) / (to - from);
      if (share < 0.002) return;
      var button = document.createElement("button"), long = one[2] - one[1];
      button.type = "button";
      button.textContent = one[4] + ": " + size(long);
      button.title = one[4] + ": " + size(long) + ", " + Math.round(1000 * long / whole) / 10 + " % of " + size(whole);
      button.style.cssText = "left:" + 100 * (a - from) / (to - from) + "%;width:" + 100 * share + "%;top:" + HIGH * one[0] + "px";
      button.style.setProperty("--own", 14 + 56 * one[3] + "%");
      button.setAttribute("aria-pressed", String(one === chosen));
      if (share < 0.03) button.textContent = "";
      if (!button.textContent) button.setAttribute("aria-label", button.title);
      button.addEventListener("click", function () { chosen = one === chosen ? null : one; draw(true); });
      box.append(button);
      if (again && one === chosen) button.focus();
      deepest = Math.max(deepest, one[0]);
    });
    box.style.height = HIGH * (deepest + 1) + "px";
  }
  function size(ns) {
    return ns < 1e3 ? Math.round(ns) + " ns" : ns < 1e6 ? (ns / 1e3).toFixed(ns < 1e5 ? 1 : 0) + " \u00b5s" : ns < 1e9 ? (ns / 1e6).toFixed(ns < 1e8 ? 2 : 1) + " ms" : (ns / 1e9).toFixed(2) + " s";
  }
  box.className = "flame";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Flame graph, a click zooms");
  still.after(box);
  still.classList.add("drawn");
  draw(false);
});
