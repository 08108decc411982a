"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const { short, decimal, group, users } = Ledger;
  const WORDS = { weights: "weights", kv_cache: "KV cache", activations: "activations", overhead: "overhead" };
  const CHOICES = ["model", "format", "kv", "engine", "attention", "logits", "convention"];
  const shown = [];
  /** The state that Python has answered itself, as text. */
  let first = null;

  /** An element with classes and children; text always goes in as text. */
  function element(name, classes = "", ...children) {
    const made = document.createElement(name);
    if (classes) made.className = classes;
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  function option(value, text = value, error = "") {
    const made = new Option(error ? `${text} (not for this model)` : text, value);
    made.disabled = Boolean(error);
    if (error) made.title = error;
    return made;
  }

  // --- sliders: powers of two and their halves between, up to what makes sense ----------
  function stops(low, high) {
    const found = [];
    for (let power = 1; power <= high; power *= 2) {
      if (power >= low) found.push(power);
      if (power >= 2 && power * 1.5 >= low && power * 1.5 <= high) found.push(power * 1.5);
    }
    if (found.at(-1) !== high) found.push(high);
    return found;
  }
  const slider = { ctx: [], users: stops(1, 4096) };

  function nearest(list, value) {
    let best = 0;
    list.forEach((stop, place) => { if (Math.abs(Math.log(stop / value)) < Math.abs(Math.log(list[best] / value))) best = place; });
    return best;
  }

  function slide(name, value) {
    const range = at(`${name}-range`), list = slider[name];
    range.max = list.length - 1;
    range.value = nearest(list, value);
    range.setAttribute("aria-valuetext", name === "ctx" ? `${group(value)} tokens` : users(value));
    range.style.setProperty("--at", `${(100 * Number(range.value)) / Number(range.max)}%`);
  }

  // --- what the controls say --------------------------------------------------------------
  const model = () => page.models[at("model").selectedIndex];

  /** A whole number within its bounds, or null; the field says so itself. */
  function whole(id, top) {
    const field = at(id);
    const good = /^[0-9]+$/.test(field.value) && Number(field.value) >= 1 && Number(field.value) <= top;
    field.setAttribute("aria-invalid", String(!good));
    return good ? Number(field.value) : null;
  }

  function share() {
    const field = at("share"), value = Number(field.value);
    const good = field.value === "" ? field.validity.valid : value > 0 && value <= 1;
    field.setAttribute("aria-invalid", String(!good));
    return good ? (field.value === "" ? null : value) : undefined;
  }

  function plan() {
    const ctx = whole("ctx", page.max.ctx), count = whole("users", page.max.users);
    const batched = whole("batched", page.max.ctx), part = share();
    if (ctx === null || count === null || batched === null || part === undefined) return null;
    return {
      page, model: model(), format: at("format").value, kv: at("kv").value, ctx: BigInt(ctx), users: BigInt(count),
      convention: at("convention").value, engine: at("engine").value, attention: at("attention").value,
      logits: at("logits").value, batched: BigInt(batched), share: part,
      asStarted: first !== null && first === state().toString(),
    };
  }

  /** Another model has other formats, cache dtypes and contexts; what still applies stays chosen. */
  function refill(first) {
    const chosen = model();
    const fill = (id, table, own) => {
      const kept = first ? own : at(id).value;
      at(id).replaceChildren(...Object.entries(table).map(([name, entry]) =>
        option(name, name !== own || name.endsWith(")") ? name : `${name} · as published`, entry.error)));
      at(id).value = [kept, own, ...Object.keys(table)].find((name) => table[name] && !table[name].error);
    };
    offer(chosen);
    fill("format", weightsOf(chosen), chosen.format);
    fill("kv", caches(chosen), chosen.kv_cache_dtype);
    slider.ctx = stops(256, Math.max(chosen.max_ctx || 131072, 1024));
    at("ctx-aside").textContent = `tokens a user${chosen.max_ctx ? `; the model takes ${group(chosen.max_ctx)}` : ""}`;
    at("title").textContent = chosen.name;
    document.title = `${chosen.name}: memory`;
    const active = chosen.active === chosen.params ? "" : `, ${group(chosen.active)} of them active for one token`;
    at("lede").textContent = `${group(chosen.params)} parameters${active}. How much memory it takes to serve, byte by byte, and how many users fit.`;
    notes(chosen);
  }

  /** Why a cache dtype of a model is none in that engine, "" where it is one. */
  function unfit(chosen, name, engine) {
    const cache = chosen.caches[name], own = page.engines[engine].kv;
    if (own && cache.engine && cache.engine !== own && name !== chosen.kv_cache_dtype) return `${cache.engine} has it, ${own} has not`;
    return Ledger.cacheError({ model: chosen, engine }, name);
  }

  /** A model's formats; transformers unpacks GGUF, so that none of its mixes is what would be held. */
  function weightsOf(chosen) {
    if (at("engine").value !== "transformers") return chosen.formats;
    return Object.fromEntries(Object.entries(chosen.formats).map(([name, form]) => [
      name, form.gguf && name !== chosen.format ? { ...form, error: "transformers unpacks GGUF into 16 bits" } : form,
    ]));
  }

  /** A model's cache dtypes; those of another engine cannot be chosen. */
  function caches(chosen) {
    return Object.fromEntries(Object.entries(chosen.caches).map(([name, cache]) =>
      [name, { ...cache, error: unfit(chosen, name, at("engine").value) }]));
  }

  /** An engine that has no cache for a model cannot be chosen; where it was, the first that can is. */
  function offer(chosen) {
    const engines = [...at("engine").options], before = at("engine").value;
    for (const entry of engines) {
      const errors = Object.keys(chosen.caches).map((name) => unfit(chosen, name, entry.value));
      entry.disabled = errors.every(Boolean);
      entry.text = entry.disabled ? `${entry.value} (not for this model)` : entry.value;
      entry.title = entry.disabled ? errors[0] : "";
    }
    if (at("engine").selectedOptions[0].disabled) at("engine").value = engines.find((entry) => !entry.disabled).value;
    if (at("engine").value !== before) step();
  }

  /** Another engine has its own cache dtypes and prefill step; a step that was typed in stays. */
  function refit() {
    step();
    refill(false);
  }

  function step() {
    if (Object.values(page.engines).some((kind) => String(kind.batched_tokens) === at("batched").value)) {
      at("batched").value = page.engines[at("engine").value].batched_tokens;
    }
  }

  function notes(chosen) {
    const parts = Object.entries(page.overhead).map(([name, size]) => `${name} ${short(BigInt(size))}`).join(", ");
    const said = [...chosen.unknown.map((part) => `not counted: ${part}`), ...chosen.notes];
    said.push(`overhead is assumed until it is measured: ${parts}, and what the machine leaves to its operating system`);
    for (const machine of shown) said.push(...machine.notes.map((note) => `${machine.name}: ${note}`));
    at("notes").replaceChildren(...said.map((text) => element("li", "", text)));
  }

  // --- pictures -------------------------------------------------------------------------------
  function buckets(asked, ledgers) {
    const { sums, each, phase, moment } = ledgers[0];
    const plain = sums.overhead - ledgers[0].reserve;
    const kept = shown.filter((machine) => machine.os_reserve).map((machine) => `on ${machine.name} ${short(BigInt(machine.os_reserve))}`);
    const why = {
      overhead: kept.length === 1 ? `and ${kept[0]} for the system` : kept.length ? "and what the system keeps" : "context, allocator, graphs",
      weights: `${group(asked.model.params)} parameters as ${asked.format}`,
      activations: `the peak: ${phase}, ${moment}`,
      kv_cache: `${users(asked.users)} × ${short(each)} for ${group(asked.ctx)} tokens`,
    };
    at("buckets").replaceChildren(...page.drawn.map((name) => {
      const size = name === "overhead" ? plain : sums[name];
      return element("div", `bucket ${name}`, element("dt", "", WORDS[name]),
        element("dd", "figure", short(size)), element("dd", "small muted", decimal(size)), element("dd", "why", why[name]));
    }));
  }

  /** What a segment of that width has room for: its name and size, its size, or nothing. */
  function label(bucket, ledger, width) {
    const room = (width / 100) * (at("machines").clientWidth - (window.innerWidth > 640 ? 134 : 0));
    const size = short(ledger.sums[bucket]);
    return [`${WORDS[bucket]} ${size}`, size, ""].find((text) => !text || text.length * 6.6 + 14 <= room);
  }

  const percent = (part, all) => Number((part * 1000000n) / all) / 10000;

  function bar(ledger, scale, name) {
    const made = element("div", "bar");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `${name}: ` + page.drawn.map((bucket) => `${WORDS[bucket]} ${short(ledger.sums[bucket])}`).join(", ") +
      `; ${short(ledger.total)} of ${short(ledger.capacity)}`);
    const place = (node, from, to) => {
      node.style.left = `${percent(from, scale)}%`;
      node.style.width = `${percent(to - from, scale)}%`;
      made.append(node);
    };
    place(element("div", "track"), 0n, ledger.capacity);
    const line = ledger.limit === null ? ledger.capacity : ledger.limit + ledger.reserve;
    const bound = line < ledger.capacity ? line : ledger.capacity;
    let start = 0n;
    for (const bucket of page.drawn) {
      const end = start + ledger.sums[bucket];
      const [from, to] = [start < scale ? start : scale, end < scale ? end : scale];
      if (to > from) place(element("div", `seg ${bucket}`, from < bound && bound < to ? "" : label(bucket, ledger, percent(to - from, scale))), from, to);
      start = end;
    }
    if (ledger.total > bound) place(element("div", "over"), bound, ledger.total < scale ? ledger.total : scale);
    if (ledger.total > scale) made.append(element("div", "torn"));
    if (bound < ledger.capacity) place(element("div", "end claim"), bound, bound);
    place(element("div", "end"), ledger.capacity, ledger.capacity);
    for (const end of made.querySelectorAll(".end")) end.style.width = "";
    return made;
  }

  function card(asked, machine, ledger, scale) {
    const [word, ...rest] = ledger.verdict.split(":");
    const size = `${short(ledger.capacity)} · ${decimal(ledger.capacity)}${machine.unified ? ", unified" : ""}`;
    const drop = element("button", "drop", "remove");
    drop.type = "button";
    drop.setAttribute("aria-label", `Remove ${machine.name}`);
    drop.addEventListener("click", () => { shown.splice(shown.indexOf(machine), 1); refillMachines(); update(); at("add").focus(); });
    const head = element("header", "", element("h3", "", machine.name), element("span", `chip ${ledger.fits ? "yes" : "no"}`, word),
      element("span", "sub", size), shown.length > 1 ? drop : null);
    const free = ledger.fits ? `${short(ledger.headroom)} free` : `${short(-ledger.headroom)} over`;
    const left = element("span", "", free);
    const taken = element("span", "", element("b", "", short(ledger.total)), ` · ${decimal(ledger.total)}`);
    if (ledger.fits && ledger.rate) left.append(element("span", "speed", `at most ${ledger.rate.toFixed(1)} tokens/s a user`));
    const made = element("article", "machine", head,
      element("div", "picture", bar(ledger, scale, machine.name), element("div", "scale", taken, left)),
      element("p", "most", element("b", "", group(ledger.maxUsers)), element("span", "", ledger.maxUsers === 1n ? "user at most" : "users at most")),
      element("p", "verdict", element("b", "", word), `:${rest.join(":")}`));
    made.dataset.machine = machine.name;
    return made;
  }

  function table(ledgers) {
    const cell = (size, plain) => element("td", "", plain ? group(size) : short(size), plain ? "" : element("small", "", `${group(size)} B`));
    const row = (key, name, read, plain = false) => {
      const bucket = WORDS[key] ? element("span", "label", element("span", `dot ${key}`), name) : name;
      const head = element("th", "", bucket);
      head.scope = "row";
      const made = element("tr", "", head, ...ledgers.map((ledger) => cell(read(ledger), plain)));
      made.dataset.row = key;
      return made;
    };
    const heads = ["", ...shown.map((machine) => machine.name)].map((name) => { const made = element("th", "", name); made.scope = "col"; return made; });
    at("table").replaceChildren(element("thead", "", element("tr", "", ...heads)), element("tbody", "",
      ...page.drawn.map((bucket) => row(bucket, WORDS[bucket], (ledger) => ledger.sums[bucket])),
      row("total", "total", (ledger) => ledger.total), row("capacity", "capacity", (ledger) => ledger.capacity),
      row("headroom", "headroom", (ledger) => ledger.headroom), row("max_users", "users at most", (ledger) => ledger.maxUsers, true)));
  }

  function curve(asked, ledgers) {
    const high = 2 ** Math.ceil(Math.log2(Math.max(asked.model.max_ctx || 131072, Number(asked.ctx) <= 2 ** 22 ? Number(asked.ctx) : 1)));
    const series = shown.map((machine, place) => {
      const points = [];
      for (let ctx = 1024; ctx <= high; ctx *= 2) points.push([ctx, Number(Ledger.maxUsers({ ...asked, machine }, BigInt(ctx)))]);
      return { name: machine.name, points, most: Number(ledgers[place].maxUsers) };
    });
    const here = { ctx: Number(asked.ctx), users: Number(asked.users) };
    Curve.draw(at("curve"), series, here, [1024, Math.max(high, 4096)], window.innerWidth > 640);
  }

  function refillMachines() {
    const rest = page.machines.filter((machine) => !shown.includes(machine));
    at("add").replaceChildren(option("", rest.length ? "choose…" : "all are shown"), ...rest.map((machine) => option(machine.name)));
    notes(model());
  }

  // --- everything anew --------------------------------------------------------------------------
  function update() {
    const asked = plan();
    if (!asked) return;
    slide("ctx", Number(asked.ctx));
    slide("users", Number(asked.users));
    at("batched").disabled = asked.engine === "transformers";
    const ledgers = shown.map((machine) => Ledger.predict({ ...asked, machine }));
    const widest = ledgers.reduce((most, ledger) => (ledger.capacity > most ? ledger.capacity : most), 0n);
    const total = ledgers.reduce((most, ledger) => (ledger.total > most ? ledger.total : most), 0n);
    const cap = (widest * 13n) / 10n;
    const scale = total > widest ? (total < cap ? total : cap) : widest;
    buckets(asked, ledgers);
    at("machines").replaceChildren(...shown.map((machine, place) => card(asked, machine, ledgers[place], scale)));
    curve(asked, ledgers);
    table(ledgers);
    remember();
    at("said").textContent = shown.map((machine, place) => `${machine.name} ${ledgers[place].fits ? "fits" : "does not fit"}, ${users(ledgers[place].maxUsers)} at most`).join("; ");
  }

  /** The address keeps what was chosen, so that it can be sent and reloaded. */
  let later = 0;
  function remember() {
    clearTimeout(later); // browsers refuse an address that changes with every step of a slider
    later = setTimeout(keep, 200);
  }

  /** What is chosen, without the machines. */
  function state() {
    const kept = new URLSearchParams();
    for (const id of CHOICES) kept.set(id, at(id).value);
    for (const id of ["ctx", "users", "batched", "share"]) if (at(id).value !== "") kept.set(id, at(id).value);
    return kept;
  }

  function keep() {
    const kept = state();
    kept.set("machines", shown.map((machine) => machine.name).join(","));
    try { history.replaceState(null, "", `#${kept}`); } catch { /* some viewers forbid it; nothing depends on it */ }
  }

  function recall() {
    const kept = new URLSearchParams(location.hash.slice(1));
    const choose = (id) => { if ([...at(id).options].some((entry) => entry.value === kept.get(id) && !entry.disabled)) at(id).value = kept.get(id); };
    choose("model");
    refill(true);
    choose("engine");
    refill(true); // the engine says which cache dtypes there are
    CHOICES.slice(1).forEach(choose);
    for (const id of ["ctx", "users", "batched", "share"]) if (kept.has(id) && /^[0-9.]{1,20}$/.test(kept.get(id))) at(id).value = kept.get(id);
    const names = (kept.get("machines") || "").split(",");
    const found = page.machines.filter((machine) => names.includes(machine.name));
    const first = page.start.machines.map((name) => page.machines.find((machine) => machine.name === name));
    shown.splice(0, shown.length, ...(found.length ? found : first));
  }

  function start() {
    at("model").replaceChildren(...page.models.map((entry) => option(entry.name)));
    at("ctx").value = page.start.ctx;
    at("users").value = page.start.users;
    at("batched").value = page.start.batched;
    at("ctx").max = at("batched").max = page.max.ctx;
    at("users").max = page.max.users;
    refill(true);
    first = state().toString();
    recall();
    refillMachines();
    at("model").addEventListener("change", () => { refill(false); update(); });
    at("engine").addEventListener("change", refit);
    for (const id of CHOICES.slice(1)) at(id).addEventListener("change", update);
    for (const id of ["ctx", "users", "batched", "share"]) at(id).addEventListener("input", update);
    for (const name of ["ctx", "users"]) {
      at(`${name}-range`).addEventListener("input", () => { at(name).value = slider[name][Number(at(`${name}-range`).value)]; update(); });
    }
    at("add").addEventListener("change", () => {
      const found = page.machines.find((machine) => machine.name === at("add").value);
      if (found) { shown.push(found); refillMachines(); update(); }
    });
    at("controls").addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("resize", update);
    at("footer").textContent = `membudget ${page.version}. Sizes in GiB (2³⁰ bytes) and GB (10⁹ bytes). This file asks no network; its arithmetic is that of membudget plan, on whole numbers.`;
    update();
  }
  start();
})();
