"use strict";
const start = () => {
  const NS = "http://www.w3.org/2000/svg";
  const probes = JSON.parse(document.getElementById("probes").textContent);
  const tip = document.getElementById("tip");
  const make = (svg, name, cls) => {
    const shape = document.createElementNS(NS, name);
    shape.setAttribute("class", cls);
    shape.setAttribute("visibility", "hidden");
    svg.append(shape);
    return shape;
  };
  const put = (shape, x, y, w, h) => {
    for (const [key, value] of Object.entries({ x, y, width: Math.max(w, 1), height: Math.max(h, 1), visibility: "visible" }))
      shape.setAttribute(key, value);
  };
  const digits = (value) => Number(value.toPrecision(4)).toString();
  const seconds = (s) => (s >= 1 ? `${digits(s)} s` : s >= 1e-3 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} us`);
  const hide = (view) => {
    tip.hidden = true;
    if (view) view.cursor.setAttribute("visibility", "hidden");
  };
  const show = (view, box, text) => {
    put(view.cursor, ...box);
    if (tip.textContent !== text) tip.textContent = text;
    tip.hidden = false;
    const frame = view.svg.getBoundingClientRect();
    const scale = frame.width / view.svg.viewBox.baseVal.width;
    const left = frame.left + (box[0] + box[2] / 2) * scale + 12;
    const top = frame.top + box[1] * scale - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${top > 4 ? top : frame.top + (box[1] + box[3]) * scale + 8}px`;
  };

  // A view answers two questions: what is at a place of the drawing, and what comes next in a direction.
  const viewPoints = (probe) => {
    const items = probe.items;
    const inside = (item, x, y, grow) =>
      x >= item[0] - grow && x <= item[0] + item[2] + grow && y >= item[1] - grow && y <= item[1] + item[3] + grow;
    return {
      at: (x, y) => {
        const hit = items.findIndex((item) => inside(item, x, y, 0));
        return hit >= 0 ? hit : items.findIndex((item) => inside(item, x, y, 4));
      },
      next: (now, dx, dy) => Math.min(items.length - 1, Math.max(0, now + dx + dy)),
      first: 0,
      box: (n) => items[n].slice(0, 4),
      text: (n) => items[n][4],
      step: (n) => items[n][5],
    };
  };

  const viewGrid = (probe, svg) => {
    const nDp = probe.dp.length, nStages = probe.stage.length, n = nDp * nStages;
    const bytes = Uint8Array.from(atob(probe.values), (char) => char.charCodeAt(0));
    const values = new Uint16Array(bytes.buffer);
    const known = (dp, stage) => {
      const value = values[view.shown * n + dp * nStages + stage];
      return value === 65535 ? NaN : value / probe.unit;
    };
    const place = (dp, stage) => [
      probe.x + (dp % probe.band) * probe.w,
      probe.y + (Math.floor(dp / probe.band) * (nStages + probe.gap) + stage) * probe.h,
    ];
    const level = (value) =>
      Math.min(8, Math.max(0, Math.floor(((value - probe.low) / (probe.high - probe.low || 1)) * 9)));
    const view = {
      shown: 0,
      at: (x, y) => {
        const column = Math.floor((x - probe.x) / probe.w);
        const line = (y - probe.y) / probe.h;
        const band = Math.floor(line / (nStages + probe.gap));
        const stage = Math.floor(line - band * (nStages + probe.gap));
        const dp = band * probe.band + column;
        return column >= 0 && column < probe.band && dp >= 0 && dp < nDp && stage >= 0 && stage < nStages ? dp * nStages + stage : -1;
      },
      next: (now, dx, dy) => {
        const dp = Math.min(nDp - 1, Math.max(0, Math.floor(now / nStages) + dx));
        return dp * nStages + Math.min(nStages - 1, Math.max(0, (now % nStages) + dy));
      },
      first: 0,
      box: (i) => [...place(Math.floor(i / nStages), i % nStages), probe.w, probe.h],
      text: (i) => {
        const dp = Math.floor(i / nStages), stage = i % nStages, value = known(dp, stage);
        const host = probe.hosts && probe.hosts[probe.host[i]] ? `, host ${probe.hosts[probe.host[i]]}` : "";
        const when = view.shown ? `step ${probe.steps[view.shown - 1]}` : "all steps";
        return `dp ${probe.dp[dp]}, stage ${probe.stage[stage]}${host}: S ${isNaN(value) ? "not known" : value.toFixed(2)} (${when})`;
      },
      redraw: (shown) => {
        view.shown = shown;
        const paths = Array.from({ length: 9 }, () => []);
        for (let dp = 0; dp < nDp; dp++)
          for (let stage = 0; stage < nStages; stage++) {
            const value = known(dp, stage), [x, y] = place(dp, stage);
            const hot = isNaN(value) ? -1 : level(value);
            if (hot >= 0) paths[hot].push(`M${x.toFixed(1)} ${y.toFixed(1)}h${probe.w}v${probe.h}h${-probe.w}z`);
            for (const name of ["n", "c"]) {
              const text = svg.querySelector(`#workers-${name}${dp}-${stage} text`);
              if (!text) continue;
              if (name === "n") text.textContent = hot < 0 ? "?" : value.toFixed(2);
              text.style.fill = hot < 0 ? "var(--ink)" : `var(--heat${hot}-ink)`;
            }
          }
        paths.forEach((parts, n) => svg.querySelector(`#workers-heat${n} path`)?.setAttribute("d", parts.join("") || "M0 0"));
      },
    };
    return view;
  };

  const viewBars = (probe, svg) => {
    const n = probe.bars.length / 6;
    const [left, , width] = probe.frame;
    const bar = (i) => probe.bars.slice(i * 6, i * 6 + 6);
    const drawn = [...svg.querySelectorAll('[id^="timeline-xtick_"]')];
    const own = document.createElementNS(NS, "g");
    svg.append(own);
    // As `round_ticks` does: 1, 2 or 5 times a power of ten apart, at most a dozen.
    const mark = (from, to) => {
      const whole = from === 0 && to === probe.end;
      drawn.forEach((tick) => tick.setAttribute("visibility", whole ? "visible" : "hidden"));
      own.replaceChildren();
      if (whole) return;
      const power = 10 ** Math.floor(Math.log10((to - from) / 12));
      const apart = [1, 2, 5, 10, 20].map((part) => part * power).find((size) => Math.floor(to / size) - Math.ceil(from / size) < 12);
      const [unit, scale] = to >= 1 ? ["s", 1] : to >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
      for (let n = Math.ceil(from / apart); n <= Math.floor(to / apart); n++) {
        const text = document.createElementNS(NS, "text");
        text.setAttribute("x", left + ((n * apart - from) / (to - from)) * width);
        text.setAttribute("y", probe.frame[1] + probe.frame[3] + 17);
        text.setAttribute("class", "tick");
        text.textContent = n ? `${Number((n * apart * scale).toPrecision(6))} ${unit}` : "0";
        own.append(text);
      }
    };
    const order = Array.from({ length: n }, (_, i) => i).sort(
      (a, b) => probe.bars[a * 6] - probe.bars[b * 6] || probe.bars[a * 6 + 4] - probe.bars[b * 6 + 4]);
    const rank = new Map(order.map((i, at) => [i, at]));
    const view = {
      from: 0,
      to: probe.end,
      span: (i) => {
        const [lane, kind, , , start, end] = bar(i);
        const px = (t) => left + ((t * probe.unit - view.from) / (view.to - view.from)) * width;
        const top = probe.lane[lane], comm = kind === 2;
        const x0 = Math.max(left, px(start)), x1 = Math.min(left + width, px(end));
        return [x0, comm ? top + probe.high * 0.72 : top + 0.5, x1 - x0, comm ? probe.high * 0.23 : probe.high * 0.7 - 0.5];
      },
      at: (x, y) => {
        let best = -1;
        for (let i = 0; i < n; i++) {
          const lane = probe.bars[i * 6], top = probe.lane[lane];
          if (y < top - 1 || y > top + probe.high + 1) continue;
          const box = view.span(i);
          if (box[2] < 0 || x < box[0] - 1 || x > box[0] + box[2] + 1) continue;
          if (best < 0 || (y >= box[1] && y <= box[1] + box[3])) best = i;
        }
        return best;
      },
      next: (now, dx, dy) => {
        if (dx) return order[Math.min(n - 1, Math.max(0, rank.get(now) + dx))];
        const lane = probe.bars[now * 6] + dy;
        return order.find((i) => probe.bars[i * 6] === lane) ?? now;
      },
      first: order[0],
      box: (i) => view.span(i),
      text: (i) => {
        const [lane, , op, microbatch, start, end] = bar(i);
        const which = microbatch >= 0 ? ` of microbatch ${microbatch}` : "";
        const took = seconds((end - start) * probe.unit);
        return `${probe.names[lane]}: ${probe.ops[op]}${which}, ${took} from ${seconds(start * probe.unit)} on`;
      },
      zoom: (from, to) => {
        const least = probe.end / 1000;
        if (to - from < least) to = from + least;
        const size = Math.min(to - from, probe.end);
        view.from = Math.max(0, Math.min(from, probe.end - size));
        view.to = view.from + size;
        const paths = [[], [], [], []];
        for (let i = 0; i < n; i++) {
          const [x, y, w, h] = view.span(i);
          if (w <= 0) continue;
          paths[probe.bars[i * 6 + 1]].push(`M${x.toFixed(2)} ${y.toFixed(1)}h${w.toFixed(2)}v${h.toFixed(1)}h${(-w).toFixed(2)}z`);
        }
        paths.forEach((parts, k) => svg.querySelector(`#timeline-kind${k} path`)?.setAttribute("d", parts.join("") || "M0 0"));
        mark(view.from, view.to);
        const whole = view.to - view.from > probe.end * 0.999;
        svg.querySelectorAll('[id^="timeline-end"]').forEach((line) => { line.style.visibility = whole ? "visible" : "hidden"; });
      },
    };
    return view;
  };

  const views = {};
  for (const [key, probe] of Object.entries(probes)) {
    const figure = document.getElementById(key), svg = figure?.querySelector("svg"), plot = figure?.querySelector(".plot");
    if (!svg) continue;
    figure.querySelectorAll(".tools").forEach((tools) => { tools.hidden = false; });
    const enlarge = figure.querySelector("[data-enlarge]");
    enlarge.addEventListener("click", () => enlarge.setAttribute("aria-pressed", plot.classList.toggle("big")));
    const build = { points: viewPoints, grid: viewGrid, bars: viewBars }[probe.kind];
    if (!build || (probe.items && !probe.items.length)) continue;
    const view = Object.assign(build(probe, svg), { svg, now: -1 });
    view.cursor = make(svg, "rect", "cursor");
    views[key] = view;
    const spot = (event) => {
      const frame = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / frame.width;
      return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
    };
    view.spot = spot;
    const look = (n) => {
      view.now = n;
      if (n < 0) hide(view);
      else show(view, view.box(n), view.text(n));
    };
    view.look = look;
    plot.addEventListener("pointermove", (event) => look(view.at(...spot(event))));
    plot.addEventListener("pointerleave", () => look(-1));
    plot.addEventListener("blur", () => look(-1));
    plot.addEventListener("click", (event) => {
      const n = view.at(...spot(event));
      look(n);
      if (n >= 0 && view.step) choose(view.step(n));
    });
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") look(-1);
      if (event.key === "Enter" && view.now >= 0 && view.step) choose(view.step(view.now));
      if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      look(view.now < 0 ? view.first : view.next(view.now, ...move));
    });
  }

  const slider = document.getElementById("step-slider"), shown = document.getElementById("step-shown");
  const steps = probes.workers?.steps ?? [];
  const turn = () => {
    const at = Number(slider.value);
    shown.textContent = at ? `step ${steps[at - 1]}` : "all steps";
    slider.setAttribute("aria-valuetext", shown.textContent);
    views.workers.redraw(at);
    if (views.workers.now >= 0) views.workers.look(views.workers.now);
  };
  const choose = (step) => {
    const at = steps.indexOf(step);
    if (!slider || at < 0) return;
    slider.value = at + 1;
    turn();
  };
  slider?.addEventListener("input", turn);

  const line = views.timeline;
  if (line) {
    const figure = document.getElementById("timeline"), plot = figure.querySelector(".plot"), probe = probes.timeline;
    figure.querySelectorAll("[data-zoom]").forEach((button) =>
      button.addEventListener("click", () => {
        const size = line.to - line.from, middle = (line.from + line.to) / 2;
        const [from, to] = {
          in: [middle - size / 4, middle + size / 4],
          out: [middle - size, middle + size],
          left: [line.from - size / 2, line.to - size / 2],
          right: [line.from + size / 2, line.to + size / 2],
          all: [0, probe.end],
        }[button.dataset.zoom];
        line.zoom(from, to);
        line.look(-1);
      }));
    const shade = make(line.svg, "rect", "drag");
    let begun = null;
    const time = (x) => line.from + ((x - probe.frame[0]) / probe.frame[2]) * (line.to - line.from);
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) { begun = line.spot(event)[0]; event.preventDefault(); plot.focus({ preventScroll: true }); }
    });
    plot.addEventListener("pointermove", (event) => {
      if (begun === null) return;
      const x = line.spot(event)[0];
      put(shade, Math.min(x, begun), probe.frame[1], Math.abs(x - begun), probe.frame[3]);
    });
    addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const x = line.spot(event)[0], ends = [time(begun), time(x)].sort((a, b) => a - b);
      shade.setAttribute("visibility", "hidden");
      if (Math.abs(x - begun) > 6) line.zoom(...ends);
      begun = null;
    });
  }
};
start();
(() => {
  const opened = [];
  addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((d) => { d.open = true; opened.push(d); }));
  addEventListener("afterprint", () => opened.splice(0).forEach((d) => { d.open = false; }));
})();
